"""Storage that optuna-dashboard reads, and the guard between it and a browser."""

import json
import re
from abc import update_abstractmethods
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, BinaryIO, NoReturn

import numpy as np
from bottle import HTTPError
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from orchestrator.errors import RunError
from orchestrator.optuna_private import (
    FrozenStudy,
    id_of,
    non_domination_ranks,
    shown_study,
    shown_trial,
    study_id_of,
)
from orchestrator.runs.records import TEACHER_OF
from orchestrator.storage.retry import reason_of

# More ids than a storage has: an id of the view is the local one plus this times the source.
_IDS = 10**9
# System attribute in which the dashboard looks for constraints; Optuna 5 has one for each.
_CONSTRAINTS = "constraints"
_ARTIFACTS = "artifacts:"  # system attributes with this prefix are files of a trial
# The dashboard keeps the notes of a trial at its study, under the trial's id.
_OF_TRIAL = re.compile(r"(dashboard:)(\d+)(:.*)")
_NOTES = re.compile(r"dashboard:(\d+:)?note_(ver|str:\d+)")


@dataclass(frozen=True)
class Source:
    """A storage; or one study of a storage that holds other runs, too."""

    storage: BaseStorage
    study_name: str | None = None  # of the only run that is looked at; None if all are

    def studies(self) -> list[FrozenStudy]:
        """List the studies that are shown."""
        name, studies = self.study_name, self.storage.get_all_studies()
        return [s for s in studies if name in (None, s.study_name, s.user_attrs.get(TEACHER_OF))]


Sources = Mapping[str, Source]  # by the name to show; with an empty name a study keeps its own


class DashboardView(BaseStorage):
    """Several sources shown as one storage, read-only but for notes."""

    # Whatever is not defined here raises PermissionError. `find` is called whenever studies are
    # listed, so that new runs appear. Each source keeps its ids: none is another run's later.

    def __init__(self, find: Callable[[], Sources]):
        self._find = find
        self._lock = Lock()
        self._known: list[tuple[str, Source]] = []  # by index
        self._places()

    def _places(self) -> list[int]:
        with self._lock:
            sources = list(self._find().items())
            self._known += [source for source in sources if source not in self._known]
            return [self._known.index(source) for source in sources]

    def _own(self, shared: int) -> tuple[int, BaseStorage, int]:
        """Resolve an id of the view: index of the source, its storage, its own id."""
        index, local = divmod(shared, _IDS)
        if index >= len(self._known):
            raise KeyError(f"no study or trial {shared}")
        return index, self._known[index][1].storage, local

    def _called(self, index: int, name: str) -> str:
        prefix, _ = self._known[index]
        return name if prefix in ("", name) else f"{prefix}: {name}"

    def _trial(self, trial: FrozenTrial, index: int) -> FrozenTrial:
        attributes = dict(trial.system_attrs)
        if trial.state is TrialState.FAIL:  # its files are gone
            attributes = {k: v for k, v in attributes.items() if not k.startswith(_ARTIFACTS)}
        if trial.constraints:
            attributes[_CONSTRAINTS] = list(trial.constraints.values())
        return shown_trial(trial, index * _IDS + id_of(trial), attributes)

    def _attributes(self, attributes: Mapping[str, Any], index: int) -> dict[str, Any]:
        def shared(found: re.Match[str]) -> str:
            return f"{found[1]}{index * _IDS + int(found[2])}{found[3]}"

        return {_OF_TRIAL.sub(shared, name): value for name, value in attributes.items()}

    def get_all_studies(self) -> list[FrozenStudy]:
        studies, places = [], self._places()
        for index in places:
            try:
                of_source = self._known[index][1].studies()
            except RunError:
                if len(places) == 1:
                    raise
                continue  # a server that is away hides no other run
            for study in of_source:
                id_, name = index * _IDS + study_id_of(study), self._called(index, study.study_name)
                attributes = self._attributes(study.system_attrs, index)
                studies.append(shown_study(study, id_, name, attributes))
        return studies

    def get_study_id_from_name(self, study_name: str) -> int:
        for study in self.get_all_studies():
            if study.study_name == study_name:
                return study_id_of(study)
        raise KeyError(f"no study {study_name}")

    def get_study_name_from_id(self, study_id: int) -> str:
        index, storage, local = self._own(study_id)
        return self._called(index, storage.get_study_name_from_id(local))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        _, storage, local = self._own(study_id)
        return storage.get_study_directions(local)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        _, storage, local = self._own(study_id)
        return storage.get_study_user_attrs(local)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        index, storage, local = self._own(study_id)
        return self._attributes(storage.get_study_system_attrs(local), index)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        index, storage, local = self._own(trial_id)
        return self._trial(storage.get_trial(local), index)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        index, storage, local = self._own(study_id)
        trials = storage.get_all_trials(local, deepcopy, states)
        return [self._trial(trial, index) for trial in trials]

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        if not _NOTES.fullmatch(key):
            _refuse()
        _, storage, local_id = self._own(study_id)

        def local(found: re.Match[str]) -> str:
            return f"{found[1]}{self._own(int(found[2]))[2]}{found[3]}"

        try:
            storage.set_study_system_attr(local_id, _OF_TRIAL.sub(local, key), value)
        except (StorageInternalError, OSError) as error:
            reason = f"the note cannot be saved: the run cannot be written ({reason_of(error)})"
            raise HTTPError(403, reason) from error


def _refuse(*_: object, **__: object) -> NoReturn:
    raise PermissionError("the dashboard shows runs and keeps notes; it changes nothing else")


for _method in DashboardView.__abstractmethods__:
    setattr(DashboardView, _method, _refuse)
update_abstractmethods(DashboardView)  # type: ignore[type-abstract]


class ArtifactsView:
    """Read-only artifacts of several stores, which `find` returns."""

    def __init__(self, find: Callable[[], Iterable[Any]]):
        self._find = find

    def open_reader(self, artifact_id: str) -> BinaryIO:
        for store in self._find():
            with suppress(Exception):  # boto3 has a class for each thing that may be wrong
                reader: BinaryIO = store.open_reader(artifact_id)
                return reader
        raise ArtifactNotFound("not found")

    write = remove = _refuse


# The guard: optuna-dashboard asks nobody who they are. It refuses what would change a run, answers
# to this machine's name alone (else any web page could read the runs through a name of its own that
# leads here), lets no artifact run as a page, and counts no trial as best that missed its budget.

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_HERE = ("127.0.0.1", "localhost")
_READS = ("GET", "HEAD", "OPTIONS")
_NOTE = re.compile(r"/api/studies/\d+(/\d+)?/note")
# Pages of the dashboard itself; all else may be an artifact.
_PAGES = ("/dashboard", "/static/", "/api/")
_DETAIL = re.compile(r"/api/studies/\d+")
_SAFE = [
    ("X-Content-Type-Options", "nosniff"),
    # Sandboxed: a page among the artifacts opens without scripts and without this origin.
    ("Content-Security-Policy", "sandbox; default-src 'none'; img-src 'self'; style-src 'none'"),
]


@dataclass(frozen=True)
class _Known:
    """Study as it was last sent to the browser, without its trials."""

    state: object
    headers: list[tuple[str, str]]
    study: dict[str, Any]
    trials: int
    ended: int  # how many of the first trials have ended and cannot change


def guarded(app: App, state: Callable[[], object], forget: Callable[[], object]) -> App:
    """Guard the dashboard's application. `state` fingerprints the storages, None if unknown;
    `forget` makes the application read them again."""
    # By itself the application answers with what it knew up to ten seconds before.
    answered: dict[str, _Known] = {}

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "GET")
        if not path.isascii():  # it would be routed without what is no UTF-8 in it
            return _refuse_request(start_response, "this is not an address of the dashboard")
        if environ.get("HTTP_HOST", "").partition(":")[0] not in _HERE:
            return _refuse_request(
                start_response, "the dashboard only answers at 127.0.0.1 and localhost"
            )
        if method not in _READS and not (method == "PUT" and _NOTE.fullmatch(path)):
            return _refuse_request(
                start_response,
                "this dashboard shows runs and keeps notes; delete a run by deleting its folder",
            )
        if method == "GET" and _DETAIL.fullmatch(path):
            return _detail(app, forget, environ, start_response, answered, state())
        page = path == "/" or path.startswith(_PAGES)
        return app(environ, start_response if page else _with_safe_headers(start_response))

    return answer


def _refuse_request(start_response: StartResponse, reason: str) -> Iterable[bytes]:
    body = json.dumps({"reason": reason}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("403 Forbidden", headers)
    return [body]


def _with_safe_headers(start_response: StartResponse) -> StartResponse:
    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        safe = [(k, v) for k, v in headers if k.lower() != "access-control-allow-origin"]
        return start_response(status, safe + _SAFE, *rest)

    return start


def _detail(
    app: App,
    forget: Callable[[], object],
    environ: Environ,
    start_response: StartResponse,
    answered: dict[str, _Known],
    state: object,
) -> Iterable[bytes]:
    """Answer with a study, its best feasible trials, and the trials that the browser may lack."""
    query = re.fullmatch(r"after=(\d+)", environ.get("QUERY_STRING", ""))
    after, path, trials = int(query[1]) if query else 0, environ["PATH_INFO"], []
    answer, first = answered.get(path), 0
    if answer is None or state is None or state != answer.state or after < answer.trials:
        if state is not None:
            forget()
        before = [] if answer is None else answer.study["best_trials"]
        first = 0 if answer is None else min(after, answer.ended)
        response, body = _asked(app, {**environ, "QUERY_STRING": f"after={first}"})
        if not response["status"].startswith("200"):
            start_response(response["status"], response["headers"])
            return [body]
        study = json.loads(body)
        trials = study.pop("trials")
        older = [trial for trial in before if trial["number"] < first]
        study["best_trials"] = _best([*older, *trials], study["directions"])
        headers = [(k, v) for k, v in response["headers"] if k.lower() != "content-length"]
        running = (n for n, trial in enumerate(trials) if trial["state"] in ("Running", "Waiting"))
        ended = first + next(running, len(trials))
        answer = answered[path] = _Known(state, headers, study, first + len(trials), ended)
    body = json.dumps({**answer.study, "trials": trials[after - first :]}).encode()
    start_response("200 OK", [*answer.headers, ("Content-Length", str(len(body)))])
    return [body]


def _asked(app: App, environ: Environ) -> tuple[dict[str, Any], bytes]:
    response: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> None:
        response.update(status=status, headers=headers)

    body = b"".join(app(environ, start))
    return response, body


def _best(trials: list[Mapping[str, Any]], directions: list[str]) -> list[Mapping[str, Any]]:
    """Feasible trials that no other dominates. Those of another program have no constraints."""
    signs = [-1 if direction == "maximize" else 1 for direction in directions]
    constrained = any(trial["constraints"] for trial in trials)
    alike = (trial for trial in trials if bool(trial["constraints"]) == constrained)
    finished = (trial for trial in alike if trial["state"] == "Complete")
    feasible = [t for t in finished if all(value <= 0 for value in t["constraints"])]
    values = [[float(value) for value in trial["values"]] for trial in feasible]
    losses = np.array(values).reshape(-1, len(signs)) * signs
    ranks = non_domination_ranks(losses, np.zeros(len(feasible)))
    return [trial for trial, rank in zip(feasible, ranks, strict=True) if rank == 0]

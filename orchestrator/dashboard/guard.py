"""What stands between a browser and optuna-dashboard, which asks nobody who they are.

A WSGI application around its own. It refuses what would change a run, answers to this machine's
name alone (else any web page could read the runs through a name of its own that leads here), lets
no artifact run as a page, and counts no trial as best that missed its budget.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.optuna_private import non_domination_ranks

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_HERE = ("127.0.0.1", "localhost")
_READS = ("GET", "HEAD", "OPTIONS")
_NOTE = re.compile(r"/api/studies/\d+(/\d+)?/note")
_PAGES = ("/dashboard", "/static/", "/api/")
"""What is the dashboard's own; all else may be an artifact."""
_DETAIL = re.compile(r"/api/studies/\d+")
_SAFE = [
    ("X-Content-Type-Options", "nosniff"),
    # Sandboxed: a page among the artifacts opens without scripts and without this origin.
    ("Content-Security-Policy", "sandbox; default-src 'none'; img-src 'self'; style-src 'none'"),
]


@dataclass(frozen=True)
class _Known:
    """A study as it was answered last, without its trials."""

    state: object
    headers: list[tuple[str, str]]
    study: dict[str, Any]
    trials: int
    ended: int
    """How many of the first trials have ended, and are as they were."""


def guarded(app: App, state: Callable[[], object], forget: Callable[[], object]) -> App:
    """The dashboard's application, guarded. `state` tells one state of the storages from the next;
    None where that is not known. `forget` makes the application read them again: by itself it
    answers with what it knew up to ten seconds before."""
    answered: dict[str, _Known] = {}

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "GET")
        if not path.isascii():  # it would be routed without what is no UTF-8 in it
            return _refuse(start_response, "this is not an address of the dashboard")
        if environ.get("HTTP_HOST", "").partition(":")[0] not in _HERE:
            return _refuse(start_response, "the dashboard only answers at 127.0.0.1 and localhost")
        if method not in _READS and not (method == "PUT" and _NOTE.fullmatch(path)):
            return _refuse(
                start_response,
                "this dashboard shows runs and keeps notes; delete a run by deleting its folder",
            )
        if method == "GET" and _DETAIL.fullmatch(path):
            return _detail(app, forget, environ, start_response, answered, state())
        own = path == "/" or path.startswith(_PAGES)
        return app(environ, start_response if own else _with_safe_headers(start_response))

    return answer


def _refuse(start_response: StartResponse, reason: str) -> Iterable[bytes]:
    body = json.dumps({"reason": reason}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("403 Forbidden", headers)
    return [body]


def _with_safe_headers(start_response: StartResponse) -> StartResponse:
    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        kept = [(k, v) for k, v in headers if k.lower() != "access-control-allow-origin"]
        return start_response(status, kept + _SAFE, *rest)

    return start


def _detail(
    app: App,
    forget: Callable[[], object],
    environ: Environ,
    start_response: StartResponse,
    answered: dict[str, _Known],
    state: object,
) -> Iterable[bytes]:
    """A study with its best trials among the feasible ones, which may be older than those that the
    browser lacks. Trials are asked for that it lacks, or that ran when it was last asked."""
    found = re.fullmatch(r"after=(\d+)", environ.get("QUERY_STRING", ""))
    after, path, trials = int(found[1]) if found else 0, environ["PATH_INFO"], []
    known, first = answered.get(path), 0
    if known is None or state is None or state != known.state or after < known.trials:
        if state is not None:
            forget()
        before = [] if known is None else known.study["best_trials"]
        first = 0 if known is None else min(after, known.ended)
        told, body = _asked(app, {**environ, "QUERY_STRING": f"after={first}"})
        if not told["status"].startswith("200"):
            start_response(told["status"], told["headers"])
            return [body]
        study = json.loads(body)
        trials = study.pop("trials")
        older = [trial for trial in before if trial["number"] < first]
        study["best_trials"] = _best([*older, *trials], study["directions"])
        headers = [(k, v) for k, v in told["headers"] if k.lower() != "content-length"]
        running = (n for n, trial in enumerate(trials) if trial["state"] in ("Running", "Waiting"))
        ended = first + next(running, len(trials))
        known = answered[path] = _Known(state, headers, study, first + len(trials), ended)
    body = json.dumps({**known.study, "trials": trials[after - first :]}).encode()
    start_response("200 OK", [*known.headers, ("Content-Length", str(len(body)))])
    return [body]


def _asked(app: App, environ: Environ) -> tuple[dict[str, Any], bytes]:
    """Status and headers, and the body, of what the dashboard answers."""
    told: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> None:
        told.update(status=status, headers=headers)

    body = b"".join(app(environ, start))
    return told, body


def _best(trials: list[Mapping[str, Any]], directions: list[str]) -> list[Mapping[str, Any]]:
    """The feasible trials that no other feasible one dominates. In a run each trial has constraints
    but for those of another program."""
    signs = [-1 if direction == "maximize" else 1 for direction in directions]
    constrained = any(trial["constraints"] for trial in trials)
    feasible = [
        trial
        for trial in trials
        if trial["state"] == "Complete"
        and bool(trial["constraints"]) == constrained
        and all(value <= 0 for value in trial["constraints"])
    ]
    values = [[float(value) for value in trial["values"]] for trial in feasible]
    losses = np.array(values).reshape(-1, len(signs)) * signs
    ranks = non_domination_ranks(losses, np.zeros(len(feasible)))
    return [trial for trial, rank in zip(feasible, ranks, strict=True) if rank == 0]

"""optuna-dashboard on a real study over HTTP: what the run publishes is there, and shown."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import waitress
from optuna.trial import TrialState
from optuna_dashboard import get_note
from optuna_dashboard._note import concat_body

from orchestrator.dashboard.server import HOST, application
from orchestrator.dashboard.view import DashboardView, Source
from orchestrator.errors import RunError
from orchestrator.runs.records import (
    BUDGET,
    HOME,
    RunRecord,
    front_document,
    load_optuna_study,
    read_run,
)
from orchestrator.runs.results import markdown
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import read_storage
from reports.overlay import overlay
from reports.page.following import _front, _trial_note, publish
from tests.reports.conftest import SPACE, many_run, store_run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of one study."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        paths = RunFolder(folder / f"seed-{seed}")
        store_run(paths, many_run(12, seed=seed))
        publish(read_run(paths.path))
    return folder


class Served:
    """A dashboard, and what it answers."""

    def __init__(self, source: Path | str):
        self.server = waitress.create_server(application(source), host=HOST, port=0)
        self.address = f"http://{HOST}:{self.server.effective_port}"
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """In the server's own thread: a socket must not go while select waits for it.

        Its workers go first: one that still wakes the server would write to a pipe that is closed,
        whose number the next database may have by then.
        """
        self.server.task_dispatcher.shutdown()
        assert not self.server.task_dispatcher.threads
        trigger, close_all = self.server.trigger, self.server.asyncore.close_all
        with trigger.lock:  # an earlier wake may close the pipe, but not before it is written to
            trigger.thunks.append(partial(close_all, self.server._map))
            trigger.pull_trigger()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.address + path, data, given, method=method)
        return urllib.request.urlopen(request, timeout=120)

    def json(self, path: str) -> Any:
        with self.ask(path) as answer:
            return json.load(answer)

    @property
    def studies(self) -> dict[str, int]:
        """Names and numbers of the studies."""
        summaries = self.json("/api/studies")["study_summaries"]
        return {study["study_name"]: study["study_id"] for study in summaries}

    def artifact(self, study: int, number: int = 0, name: str | None = None) -> str:
        """Where a file of a trial is, by default the first."""
        trial = self.json(f"/api/studies/{study}")["trials"][number]
        files = trial["artifacts"]
        file = next(file["artifact_id"] for file in files if name in (None, file["filename"]))
        return f"/artifacts/{study}/{trial['trial_id']}/{file}"

    def read(self, path: str) -> bytes:
        with self.ask(path) as answer:
            return bytes(answer.read())

    def failed(self, *args: Any, code: int | None = None, **kwargs: Any) -> bytes:
        """What it answers with this code, or with any that is an error's."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.ask(*args, **kwargs)
        with caught.value as error:
            assert code in (None, error.code)
            return error.read()

    def refused(self, *args: Any, **kwargs: Any) -> str:
        return str(json.loads(self.failed(*args, code=403, **kwargs))["reason"])


@pytest.fixture(scope="module")
def one(runs: Path) -> Iterator[Served]:
    with closing(Served(runs / "seed-0")) as served:
        yield served


@pytest.fixture(scope="module")
def both(runs: Path) -> Iterator[Served]:
    with closing(Served(runs)) as served:
        yield served


def test_a_study_has_its_note_its_objectives_and_its_front(runs: Path, one: Served) -> None:
    run = read_run(runs / "seed-0")
    study = one.json("/api/studies/1")
    assert study["directions"] == ["maximize", "minimize"]
    assert study["note"]["body"].startswith("**No model loses at most 3%; trial ")
    assert "knee" in study["note"]["body"]
    (graph,) = study["plotly_graph_objects"]
    assert graph["id"] == "front"
    (front,) = (t for t in json.loads(graph["graph_object"])["data"] if t["name"] == "front")
    assert front["y"] == [point["metric"] for point in front_document(run)["front"]]
    assert len(graph["graph_object"]) < 20_000


def test_what_a_hover_names_is_there(mixed_run: RunRecord) -> None:
    known = {
        trace.name: [number for _, number in trace.customdata]
        for trace in _front(overlay(mixed_run)).data
        if "customdata" in (trace.hovertemplate or "")
    }
    assert known == {"dominated": [2], "outside its budget or aims": [3]}


def test_constraints_are_seen_and_none_outside_its_budget_is_best(runs: Path, one: Served) -> None:
    """Traps D1: the dashboard reads constraints where Optuna 5 no longer writes them."""
    run = read_run(runs / "seed-0")
    study = one.json("/api/studies/1")
    for row in study["trials"]:
        trial = run.trials[row["number"]]
        assert trial.result is not None
        assert row["constraints"] == [trial.result.violation]
        assert ("**outside** the band" in row["note"]["body"]) == (not trial.feasible)
        assert "| 1 | " in row["note"]["body"]
    front = sorted(point["trial"] for point in front_document(run)["front"])
    assert [row["number"] for row in study["best_trials"]] == front
    later = one.json("/api/studies/1?after=10")
    assert [row["number"] for row in later["trials"]] == [10, 11]
    assert [row["number"] for row in later["best_trials"]] == front


def test_a_poll_reads_trials_only_after_a_write_and_then_has_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunFolder(tmp_path / "run")
    store_run(paths, many_run(6))
    reads: list[int] = []
    read = DashboardView.get_all_trials

    def counted(view: DashboardView, study_id: int, **given: Any) -> Any:
        reads.append(study_id)
        return read(view, study_id, **given)

    monkeypatch.setattr(DashboardView, "get_all_trials", counted)
    study = load_optuna_study(paths.path)
    with closing(Served(paths.path)) as served:
        known = served.json("/api/studies/1")
        quiet = [served.json("/api/studies/1?after=6") for _ in range(2)]
        assert quiet == [{**known, "trials": []}] * 2
        assert len(reads) == 1
        study.tell(study.ask(dict(SPACE)), state=TrialState.FAIL)
        assert [row["number"] for row in served.json("/api/studies/1?after=6")["trials"]] == [6]
        assert [row["number"] for row in served.json("/api/studies/1?after=5")["trials"]] == [5, 6]
        late = [study.ask(dict(SPACE)) for _ in range(2)]
        study.tell(late[1], state=TrialState.FAIL)
        assert len(served.json("/api/studies/1?after=7")["trials"]) == 2
        late[0].set_constraint(BUDGET, -1.0)  # else it is another program's
        study.tell(late[0], [2.0, 1.0])  # better and cheaper than any
        best = served.json("/api/studies/1?after=9")
        assert best["trials"] == []
        assert [row["number"] for row in best["best_trials"]] == [late[0].number]


def test_artifacts_download_and_run_nothing(runs: Path, one: Served) -> None:
    (trial,) = (t for t in one.json("/api/studies/1")["trials"] if t["number"] == 3)
    files = {artifact["filename"]: artifact["artifact_id"] for artifact in trial["artifacts"]}
    assert set(files) == {"architecture.json", "curve.csv", "page.html"}
    folder = RunFolder(runs / "seed-0").trial(3)
    for name, artifact in files.items():
        with one.ask(f"/artifacts/1/{trial['trial_id']}/{artifact}") as answer:
            assert answer.read() == (folder / name).read_bytes()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"].startswith("sandbox;")
            assert answer.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("path", ["/%FFartifacts/{}", "/%C2artifacts/{}", "/artifacts%FF/{}"])
def test_no_spelling_of_an_artifact_gets_around_the_guard(one: Served, path: str) -> None:
    """The dashboard's router leaves out what is no UTF-8."""
    page = one.artifact(1, 3).removeprefix("/artifacts/")
    assert "not an address of the dashboard" in one.refused(path.format(page))


def test_what_would_change_a_run_is_refused(runs: Path, one: Served) -> None:
    for method, path, body in (
        ("DELETE", "/api/studies/1", {}),
        ("POST", "/api/studies/1/rename", {"study_name": "mine"}),
        ("POST", "/api/studies", {"study_name": "mine", "directions": ["minimize"]}),
        ("POST", "/api/trials/1/user-attrs", {"user_attrs": {"a": 1}}),
        ("DELETE", "/api/artifacts/1/1/00", None),
    ):
        assert "deleting its folder" in one.refused(path, method, body)
    assert "only answers at 127.0.0.1" in one.refused("/api/studies", Host="evil.example")
    assert len(list((runs / "seed-0" / "artifacts").iterdir())) == 36
    assert len(read_run(runs / "seed-0").trials) == 12


@pytest.mark.parametrize("name", ["one", "both"])
def test_a_note_can_be_written_and_is_kept(
    name: str, runs: Path, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(name)
    run = runs / "seed-1" if name == "both" else runs / "seed-0"
    study_id = served.studies["many" if name == "one" else "seed-1: many"]
    trial = served.json(f"/api/studies/{study_id}")["trials"][2]
    version = trial["note"]["version"] + 1
    body = {"body": f"mine, of {name}", "version": version}
    with served.ask(f"/api/studies/{study_id}/{trial['trial_id']}/note", "PUT", body) as answer:
        assert answer.status == 204
    publish(read_run(run))  # what a reader wrote stays
    again = served.json(f"/api/studies/{study_id}")["trials"]
    assert [t["note"]["body"] for t in again].count(f"mine, of {name}") == 1
    assert again[2]["note"]["body"] == f"mine, of {name}"


def test_a_note_on_a_study_is_kept_and_until_then_follows_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunFolder(tmp_path / "run")
    store_run(paths, many_run(4, seed=0))
    study, texts = load_optuna_study(paths.path), iter(["one", "two", "three", "four"])
    monkeypatch.setattr("reports.page.following._study_note", lambda run: next(texts))

    def published() -> str:
        publish(read_run(paths.path))
        return get_note(study)

    assert [published(), published()] == ["one", "two"]
    with monkeypatch.context() as killed:
        killed.setattr("optuna_dashboard.save_note", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            published()
    assert published() == "four", "what a killed launch left is its own"
    with closing(Served(paths.path)) as served:
        version = served.json("/api/studies/1")["note"]["version"] + 1
        served.ask("/api/studies/1/note", "PUT", {"body": "mine", "version": version}).close()
    texts = iter(["five", "six"])
    assert [published(), published()] == ["mine", "mine"]


def test_a_run_nobody_may_write_keeps_no_note(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # root may write anything
    with closing(Served(runs / "seed-1")) as served:
        body = {"body": "mine", "version": served.json("/api/studies/1")["note"]["version"] + 1}
        reason = served.refused("/api/studies/1/note", "PUT", body)
    assert reason.startswith("the note cannot be saved: the run cannot be written (attempt to")


def test_a_folder_of_runs_is_one_dashboard(runs: Path, both: Served) -> None:
    studies = both.studies
    assert set(studies) == {"seed-0: many", "seed-1: many"}
    for seed, number in enumerate(studies.values()):
        study = both.json(f"/api/studies/{number}")
        run = read_run(runs / f"seed-{seed}")
        assert [row["values"][0] for row in study["trials"]] == [
            trial.result.metric for trial in run.trials if trial.result is not None
        ]
        assert both.read(both.artifact(number))


@pytest.mark.parametrize("source", ["one run", "a folder of runs"])
def test_a_deleted_run_goes_and_another_at_its_path_comes(tmp_path: Path, source: str) -> None:
    kept, gone = RunFolder(tmp_path / "kept"), RunFolder(tmp_path / "gone")

    store_run(kept, many_run(3, name="kept"))
    store_run(gone, many_run(3, name="old"))
    alone = source == "one run"
    with closing(Served(gone.path if alone else tmp_path)) as served:

        def seen() -> dict[str, int]:
            return {name.split(": ")[-1]: number for name, number in served.studies.items()}

        others = set() if alone else {"kept"}
        before = seen()
        assert set(before) == {"old"} | others
        shutil.rmtree(gone.path)
        assert set(seen()) == others
        served.failed(f"/api/studies/{before['old']}", code=404)
        store_run(gone, many_run(3, name="new"))
        after = seen()
        assert set(after) == {"new"} | others
        assert after["new"] != before["old"], "a page that is open takes one for the other"
        shutil.rmtree(gone.path)
        store_run(gone, many_run(3, name="newer"))  # nobody looked while it was gone
        assert set(seen()) == {"newer"} | others
        assert served.read(served.artifact(seen()["newer"]))


def test_a_damaged_run_hides_no_other(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    (folder / "seed-0" / "study.db").write_bytes(b"no database")
    with closing(Served(folder)) as served:
        ((name, number),) = served.studies.items()
        assert served.read(served.artifact(number))
    assert name == "seed-1: many"
    (folder / "seed-1" / "study.db").write_bytes(b"no database")
    for source in (folder / "seed-0", folder):  # where there is nothing else to see
        with pytest.raises(RunError, match=r"seed-0.study\.db"):
            application(source)


def test_a_server_that_is_away_hides_no_other_run(runs: Path) -> None:
    storages = {name: read_storage(RunFolder(runs / name).storage) for name in os.listdir(runs)}
    sources = {name: Source(storage) for name, storage in storages.items()}
    view = DashboardView(lambda: sources)  # type: ignore[abstract]
    assert len(view.get_all_studies()) == 2
    away = Mock(side_effect=RunError("the server is away"))
    storages["seed-0"].get_all_studies = away  # type: ignore[method-assign]
    (left,) = view.get_all_studies()
    assert left.study_name.startswith("seed-1")
    del sources["seed-1"]
    with pytest.raises(RunError, match="is away"):
        view.get_all_studies()


def test_a_storage_has_a_dashboard_by_its_url(runs: Path) -> None:
    with closing(Served(f"sqlite:///{runs / 'seed-0' / 'study.db'}")) as served:
        assert served.studies == {"many": 1}
        kept = RunFolder(runs / "seed-0").trial(3) / "architecture.json"
        assert served.read(served.artifact(1, 3, kept.name)) == kept.read_bytes()


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder's", "pipe"])
def test_only_files_of_the_run_are_served(runs: Path, tmp_path: Path, kind: str) -> None:
    """A run folder may be a stranger's."""
    folder = RunFolder(shutil.copytree(runs / "seed-0", tmp_path / "run"))
    secret = tmp_path / "secret"
    with closing(Served(folder.path)) as served:
        path = served.artifact(*served.studies.values())
        kept, artifact = served.read(path), folder.artifacts / path.rpartition("/")[2]
        if kind == "link to a folder's":
            folder.artifacts.rename(secret)
            folder.artifacts.symlink_to(secret)
        else:
            artifact.replace(secret)
            if kind == "pipe":
                os.mkfifo(artifact)
            else:
                artifact.symlink_to(secret)
        assert kept not in served.failed(path)


def in_one_storage(folder: Path, *names: str) -> str:
    """The URL of a storage of several studies, each with a run folder of its name."""
    storage = f"sqlite:///{folder / 'shared.db'}"
    for name in names:
        paths = RunFolder(folder / name)
        paths.write_address(storage, name, f"identity of {name}")
        store_run(paths, many_run(2, name=name))
        home = {"folder": paths.identity, "path": str(paths.path), "host": f"host of {name}"}
        optuna.load_study(study_name=name, storage=storage).set_user_attr(HOME, home)
    return storage


def test_a_run_folder_shows_its_own_study_of_a_shared_storage(tmp_path: Path) -> None:
    storage = in_one_storage(tmp_path, "a", "b")
    for source, wanted in ((tmp_path, ["a", "b"]), (tmp_path / "b", ["b"]), (storage, ["a", "b"])):
        with closing(Served(source)) as served:
            assert [*served.studies] == wanted
            for number in served.studies.values():
                assert served.read(served.artifact(number, 1))


def test_of_a_storage_the_artifacts_that_are_here_are_shown(tmp_path: Path) -> None:
    storage = in_one_storage(tmp_path, "here", "there")
    shutil.move(tmp_path / "there", tmp_path / "moved")  # to another machine, say
    with closing(Served(storage)) as served:
        assert served.read(served.artifact(1))
        served.failed(served.artifact(2))  # the dashboard's own
        attributes = served.json("/api/studies/2")["user_attrs"]
        (home,) = (row["value"] for row in attributes if row["key"] == HOME)
    assert f"{tmp_path}/there" in home
    assert "host of there" in home


@pytest.mark.slow
def test_a_browser_shows_it(
    runs: Path, one: Served, open_tab: Callable[..., Any], pictures: Path
) -> None:
    tab = open_tab(offline=False)
    tab.page.goto(f"{one.address}/dashboard/studies/1")
    tab.page.wait_for_selector("text=The Pareto front", timeout=180_000)
    tab.page.screenshot(path=pictures / "dashboard.png", full_page=True)
    tab.page.goto(f"{one.address}/dashboard/studies/1/trials?numbers=5")
    tab.page.wait_for_selector("text=architecture.json", timeout=180_000)
    assert tab.page.locator("text=of 32").count() >= 2
    tab.page.screenshot(path=pictures / "dashboard-trial.png")
    assert tab.seen == []
    assert all(url.startswith((one.address, "data:", "blob:")) for url in tab.requests)


def test_notes_take_no_markup_from_anyone(mixed_run: RunRecord) -> None:
    hostile = "<img src=x onerror=alert(1)> [x](javascript:alert(1)) **bold** `code`\n# head"
    assert markdown(hostile) == (
        r"&lt;img src=x onerror=alert(1)&gt; [x\](javascript:alert(1)) \*\*bold\*\* \`code\` # head"
    )
    failed = replace(mixed_run.trials[4], failure=hostile)
    assert _trial_note(mixed_run, failed) == f"Failed: {markdown(hostile)}"


def test_publishing_again_changes_nothing(runs: Path) -> None:
    study = load_optuna_study(runs / "seed-0")
    before = study._storage.get_study_system_attrs(study._study_id)
    publish(read_run(runs / "seed-0"))
    assert study._storage.get_study_system_attrs(study._study_id) == before


def test_notes_are_not_read_to_be_kept(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To put one together all attributes are looked through: only the study's is, for its text."""
    read = []

    def concat(parts: dict[str, str], trial_id: int | None) -> str:
        read.append(trial_id)
        return concat_body(parts, trial_id)

    monkeypatch.setattr("optuna_dashboard._note.concat_body", concat)
    publish(read_run(runs / "seed-0"))
    assert read == [None]

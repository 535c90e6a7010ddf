"""The status of a run, of a storage, and what it does not need."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from maskfront import Study
from orchestrator.errors import RunError
from orchestrator.runs.records import (
    WANTED,
    WORKER,
    State,
    TrialRecord,
    load_optuna_study,
    read_run,
)
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status, storage_status, trials_per_second
from orchestrator.storage.connect import open_storage
from orchestrator.workers import heartbeat
from orchestrator.workers.heartbeat import Heartbeat
from reports.recommended import recommended
from tests.command_line import assert_one_clear_line, maskfront
from tests.launching import run_study
from tests.orchestrator.methods import scripted
from tests.servers import Postgres


def test_status_counts_trials_workers_and_failures(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    ends = scripted(study, "result", "fail", "result", "result")
    run = run_study(ends, folder, trials=3)
    optuna_study = load_optuna_study(folder)
    dead = Heartbeat(optuna_study, RunFolder(folder), "cpu")
    dead._beat()
    dead._file.touch()
    with Heartbeat(optuna_study, RunFolder(folder), "cuda") as beating:
        idle = "\n".join(run_status(folder).lines())
        optuna_study.ask().set_user_attr(WORKER, beating.record.name)
        status = run_status(folder)
        lines = "\n".join(status.lines())
    counts = {state: count for state, count in status.trials.items() if count}
    assert counts == {"finished": 3, "failed": 1, "running": 1}
    assert status.wanted == 3
    assert status.per_hour is not None
    assert status.seconds_left == 0
    assert status.failures == {"the loss is nan at step 3": 1}
    assert [trial.number for trial in status.front] == [trial.number for trial in run.front]
    alive = {worker["name"]: worker["alive"] for worker in status.workers}
    assert alive == {beating.record.name: True, dead.record.name: False}
    assert f"{beating.record.name} on cuda: alive, runs [4]" in lines
    assert f"{beating.record.name} on cuda: alive, between trials" in idle
    assert f"{dead.record.name} on cpu: dead" in lines
    assert "failed     once: the loss is nan at step 3" in lines
    elsewhere = storage_status(f"sqlite:///{folder}/study.db", None)
    assert elsewhere.trials == status.trials
    assert (status.damaged, elsewhere.damaged) == ({}, {})
    number = status.front[0].number
    weights = RunFolder(folder).trial(number) / "model" / "model.safetensors"
    os.truncate(weights, 1000)
    status = run_status(folder)
    (line,) = status.damaged[number]
    assert line.startswith("model/model.safetensors is ")
    assert f"damaged    trial {number}: {line}" in status.lines()
    monkeypatch.setattr(heartbeat, "GRACE", 0.0)
    late = storage_status(f"sqlite:///{folder}/study.db", None)
    assert not any(worker["alive"] for worker in late.workers)
    assert late.per_hour == status.per_hour
    assert late.seconds_left is None


def ran(start: float, end: float | None, state: State = "finished", worker: int = 0) -> TrialRecord:
    """A trial from one second to another."""
    nothing = {"knobs": {}, "result": None, "failure": None, "attributes": {WORKER: worker}}
    return TrialRecord(number=0, state=state, started=start, ended=end, **nothing)


def in_turns(at_once: int, turns: float, seconds: int = 600) -> list[TrialRecord]:
    """What so many workers ran, one trial after another, out of step; the last still run."""
    until = turns * seconds
    starts = [
        (place, place * seconds / at_once + turn * seconds)
        for place in range(at_once)
        for turn in range(int(turns) + 1)
    ]
    return [
        ran(start, start + seconds, worker=place)
        if start + seconds <= until
        else ran(start, None, "running", worker=place)
        for place, start in starts
        if start < until
    ]


@pytest.mark.parametrize("at_once", [1, 4, 16, 64])
def test_the_rate_is_that_of_all_who_work(at_once: int) -> None:
    rate = trials_per_second(in_turns(at_once, turns=30.5))
    assert rate == pytest.approx(at_once / 600, rel=0.02)


def test_the_rate_of_a_population_which_ends_as_one() -> None:
    together = [ran(600 * n, 600 * (n + 1) + place * 1e-3) for n in range(3) for place in range(32)]
    assert trials_per_second(together) == pytest.approx(32 / 600, rel=0.01)


@pytest.mark.parametrize("search", [0, 60, 480])
@pytest.mark.parametrize("ended", [1, 2, 3, 4, 5, 8, 14, 41])
def test_the_rate_of_populations_whose_trials_end_one_after_another(
    ended: int, search: int
) -> None:
    """Four at once search, then each is distilled for a minute in its turn; claims take moments."""
    trials = []
    for number in range(ended // 4 * 4 + 4):
        population, place = divmod(number, 4)
        start = (search + 240) * population
        end = start + search + 60 * (place + 1) if number < ended else None
        trials.append(ran(start + 0.01 * place, end, "finished" if end else "running"))
    first = ended / (search + 60 * ended)  # nobody knows what the others of the first will take
    assert trials_per_second(trials) == pytest.approx(
        first if ended < 4 else 4 / (search + 240), rel=0.05
    )


def test_the_rate_knows_the_time_that_failures_took_and_not_the_nights() -> None:
    night = 50_000.0
    tries = [
        ran(night * (n // 4) + 60 * n, night * (n // 4) + 60 * (n + 1), state)
        for n, state in enumerate(["finished", "failed"] * 8)
    ]
    assert trials_per_second(tries) == pytest.approx(1 / 120, rel=0.1)
    assert trials_per_second([ran(0, 60, "failed"), ran(60, None, "running")]) is None


def test_status_is_json_without_torch(study: Study, tmp_path: Path) -> None:
    run_study(scripted(study, "result"), tmp_path / "run", trials=1)
    done = maskfront("status", tmp_path / "run", "--json")
    document = json.loads(done.stdout)
    assert document["trials"]["finished"] == 1
    assert document["front"][0]["trial"] == 0
    url = f"sqlite:///{tmp_path}/run/study.db"
    for arguments, message in (
        ([], "name either a run folder or a storage"),
        ([tmp_path / "nowhere"], "is not a run folder"),
        ([tmp_path / "run", "--study", "other"], "a run folder has one study"),
        (["--storage", f"sqlite:///{tmp_path}/nowhere.db"], "there is no storage sqlite"),
        (["--storage", url, "--study", "other"], "there is no study 'other'; the storage has tiny"),
        (["--storage", "postgresql://me:s3cret@127.0.0.1:1/x"], "connection failed"),
    ):
        done = maskfront("status", *arguments)
        assert_one_clear_line(done, message)
        assert "s3cret" not in done.stderr


def test_the_runs_of_a_folder_are_listed_one_a_line(study: Study, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, trials in (("done", 2), ("later", 1)):
        run_study(scripted(study, *["result"] * trials), runs / name, trials=trials)
    load_optuna_study(runs / "later").set_user_attr(WANTED, 5)
    (runs / "broken").mkdir()
    (runs / "broken" / "study.db").write_text("no database")
    (runs / "no run").mkdir()
    listed = maskfront("status", "runs", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    broken, done, later = listed.stdout.splitlines()
    assert re.match("runs/broken  .*study.db cannot be opened: file is not a database", broken)
    best = recommended(read_run(runs / "done"))
    assert best is not None
    result = rf"trial {best.number}: {best.result.metric:.4f} at FLOPs ratio [01]\.\d+"
    assert re.fullmatch(rf"runs/done    2 of 2 trials +finished +{result}", done)
    assert re.match(r"runs/later   1 of 5 trials +stopped +trial 0: 0\.", later)
    with Heartbeat(load_optuna_study(runs / "later"), RunFolder(runs / "later"), "cpu"):
        documents = json.loads(maskfront("status", "runs", "--json", cwd=tmp_path).stdout)
    assert documents["runs/done"]["best"] == best.number
    assert documents["runs/later"]["state"] == "running"
    assert set(documents["runs/broken"]) == {"error"}


@pytest.mark.slow
def test_a_run_whose_study_lies_in_a_server(
    study: Study, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder and study know each other; the password is in neither."""
    monkeypatch.setenv("MASKFRONT_STORAGE_PASSWORD", "s3cret")
    user = postgres.new_user("eve", "s3cret")
    url = user.format(password="s3cret")
    small = scripted(study, "result", "result")
    run_study(small, tmp_path / "run", trials=1, storage=url)
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()
    run = run_study(small, tmp_path / "run", trials=2)
    assert [trial.state for trial in run.trials] == ["finished"] * 2
    assert run_status(tmp_path / "run").trials["finished"] == 2
    with pytest.raises(RunError, match=r"the files of study 'tiny' are not in .*, but in /"):
        run_study(small, tmp_path / "else", storage=url)
    with pytest.raises(RunError, match=r"has its study in postgresql.*, not in sqlite"):
        run_study(small, tmp_path / "run", storage=f"sqlite:///{tmp_path}/x.db")
    optuna.create_study(study_name="taken", storage=open_storage(url))
    with pytest.raises(RunError, match=r"a study 'taken' with other objectives than metric"):
        run_study(replace(small, name="taken"), tmp_path / "new", storage=url)


def test_a_storage_without_the_study_says_what_to_do(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    storage = open_storage(folder.storage)
    with pytest.raises(RunError, match=r"study\.db holds no study; `maskfront run` with this stor"):
        storage_status(folder.storage, None)
    with pytest.raises(RunError, match=r"holds 0 studies, but a run has exactly one; launch"):
        load_optuna_study(tmp_path)
    for name in ("one", "other"):
        optuna.create_study(study_name=name, storage=storage)
    with pytest.raises(RunError, match=r"^no study is named; the storage has one, other: name"):
        storage_status(folder.storage, None)
    folder.write_address(folder.storage, "gone", "id")
    with pytest.raises(RunError, match=r"no longer holds the study 'gone'; .* \(out=\.\.\.\)$"):
        load_optuna_study(tmp_path)


def test_a_study_of_another_tool_is_left_alone(study: Study, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/theirs.db"
    theirs = optuna.create_study(
        study_name="tiny", storage=url, directions=["maximize", "minimize"]
    )
    theirs.tell(theirs.ask(), state=TrialState.FAIL)
    with pytest.raises(RunError, match="a study 'tiny' that maskfront did not make"):
        run_study(scripted(study, "result"), tmp_path / "run", storage=url)
    assert len(theirs.trials) == 1


def test_a_study_of_another_tool_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    other = optuna.create_study(storage=url, study_name="theirs")
    other.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    with pytest.raises(RunError, match="maskfront did not make the study 'theirs'"):
        storage_status(url, None)

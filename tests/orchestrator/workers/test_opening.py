"""A study and its run folder find each other again, or say why not."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from maskfront import Study
from orchestrator.errors import RunError
from orchestrator.runs.records import HOME, WANTED, RunRecord, load_optuna_study
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage, read_storage
from orchestrator.workers.heartbeat import WORKERS, WorkerRecord
from orchestrator.workers.loop import work
from orchestrator.workers.opening import bind_folder
from tests.launching import run_study
from tests.orchestrator.methods import scripted


def test_a_launch_killed_between_folder_and_study_is_launched_again(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: dict[str, Any] = {"out": tmp_path / "run", "storage": f"sqlite:///{tmp_path}/study.db"}
    set_user_attr = optuna.Study.set_user_attr

    def killed(optuna_study: optuna.Study, name: str, value: object) -> None:
        if name == HOME:
            raise SystemExit
        set_user_attr(optuna_study, name, value)

    monkeypatch.setattr(optuna.Study, "set_user_attr", killed)
    with pytest.raises(SystemExit):
        run_study(scripted(study, "result"), **place)
    assert (tmp_path / "run" / "storage.json").is_file()
    monkeypatch.undo()
    run = run_study(scripted(study, "result"), **place)
    assert [trial.state for trial in run.trials] == ["finished"]
    (tmp_path / "study.db").unlink()
    with pytest.raises(RunError, match=r"database is gone; .*, or put sqlite:///.*/study\.db back"):
        run_study(scripted(study, "result"), **place)
    shutil.rmtree(tmp_path / "run" / "trials")
    rows = (tmp_path / "run" / "rows.safetensors").read_bytes()
    run_study(scripted(study, "result"), **place)
    (lost,) = (tmp_path / "run").glob("lost-*/rows.safetensors")
    assert lost.read_bytes() == rows, "another study's rows are read by nobody"


def test_the_trials_of_a_lost_database_are_not_replaced(study: Study, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    (run.path / "cache").mkdir(parents=True)
    run_study(scripted(study, "result"), run.path)  # a cache alone is no run
    result = (run.trial(0) / "result.json").read_bytes()
    whole, copy = sqlite3.connect(run.database), sqlite3.connect(tmp_path / "copy.db")
    with closing(whole), closing(copy):
        whole.backup(copy)
    for file in run.path.glob("study.db*"):
        file.unlink()
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    others: list[tuple[Study, str | None]] = [
        (study, None),
        (replace(study, name="another"), None),
        (study, elsewhere),
    ]
    for other, storage in others:
        with pytest.raises(RunError, match=r"run' holds trials of a .* or put study\.db back"):
            run_study(scripted(other, "result"), run.path, storage=storage)
    assert not run.database.exists()
    assert (run.trial(0) / "result.json").read_bytes() == result
    assert read_storage(elsewhere).get_all_studies() == []

    run.database.touch()  # as after a power cut
    run_study(scripted(study, "result"), run.path)
    (lost,) = run.path.glob("lost-*")
    assert {path.name for path in lost.iterdir()} == {"00000", "rows.safetensors"}
    assert (lost / "00000" / "result.json").read_bytes() == result
    for file in run.path.glob("study.db*"):
        file.unlink()
    (tmp_path / "copy.db").rename(run.database)
    more = run_study(scripted(study, "result", "result"), run.path)
    assert [trial.state for trial in more.trials] == ["finished", "finished"]
    assert (run.trial(0) / "result.json").read_bytes() == result


def test_a_launch_that_is_refused_changes_nothing(study: Study, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    run_study(scripted(study, "result"), tmp_path / "run", storage=url)
    more = scripted(study, "result", "result", "result")
    with pytest.raises(RunError, match="the files of study 'tiny' are not in"):
        run_study(more, tmp_path / "b", storage=url)
    optuna_study = load_optuna_study(tmp_path / "run")
    assert optuna_study.user_attrs[WANTED] == 1
    assert len(optuna_study.trials) == 1
    run_study(more, tmp_path / "run", storage=url)
    assert len(optuna_study.trials) == 3
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunError, match=r"were deleted; delete the study in the storage, too"):
        run_study(more, tmp_path / "run", storage=url)


def test_a_launch_looks_for_room_beside_the_workers_that_live(study: Study, tmp_path: Path) -> None:
    run_study(scripted(study, "result", "result"), tmp_path / "run", trials=1)
    far = WorkerRecord(
        name="far-1-a", host="far", machine="far", pid=1, device="cpu", beat=1, at=time.time()
    )
    load_optuna_study(tmp_path / "run").set_user_attr(WORKERS + far.name, asdict(far))
    with pytest.raises(RunError, match="SQLite serves one machine, and far works on this study"):
        run_study(scripted(study, "result", "result"), tmp_path / "run")


def test_a_copy_is_told_from_its_original_while_that_is_at_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    optuna_study = optuna.create_study(study_name="s", storage=open_storage(url))
    home, copy = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "copy")
    home.path.mkdir()
    bind_folder(home, optuna_study, url)
    shutil.copytree(home.path, copy.path)
    with home.locked(), pytest.raises(RunError, match=r"copy', but in .*run "):
        bind_folder(copy, optuna_study, url)
    bind_folder(copy, optuna_study, url)  # as if moved to another disk
    with copy.locked(), pytest.raises(RunError, match=r"run', but in .*copy "):
        bind_folder(home, optuna_study, url)


def test_a_moved_run_may_lack_models_that_nobody_wants(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    optuna_study = optuna.create_study(study_name="s", storage=open_storage(url))
    optuna_study.add_trial(optuna.trial.create_trial(value=1.0))
    home, moved = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "moved")
    home.trial(0).mkdir(parents=True)
    bind_folder(home, optuna_study, url)
    shutil.copytree(home.path, moved.path)
    shutil.rmtree(moved.trial(0))
    with pytest.raises(RunError, match=r"moved', but in .*run "):
        bind_folder(moved, optuna_study, url)
    shutil.rmtree(home.path)
    bind_folder(moved, optuna_study, url)
    assert optuna_study.user_attrs[HOME]["path"] == str(moved.path)


@pytest.mark.slow
def test_a_copy_at_work_is_refused_and_a_moved_one_goes_on(study: Study, tmp_path: Path) -> None:
    url, home, copy = f"sqlite:///{tmp_path}/study.db", tmp_path / "run", tmp_path / "copy"

    def launch(out: Path, trials: int, **more: Any) -> RunRecord:
        ends = ("result",) * trials
        return run_study(scripted(study, *ends, population=1), out, **more)

    refused: list[str] = []

    def launch_copy(_: RunRecord) -> None:
        if not copy.exists():
            shutil.copytree(home, copy)
            for join in (run_study, work):
                with pytest.raises(RunError) as error:
                    join(scripted(study, "result", "result"), out=copy, device="cpu")
                refused.append(error.value.text)

    launch(home, 2, storage=url, callbacks=[launch_copy])
    assert len(refused) == 2, "a callback that fails is only noted"
    for line in refused:
        assert re.search(r"are not in '.*copy', but in .*run \(on ", line), line
    with pytest.raises(RunError, match="are not in"):
        launch(copy, 3)  # the original has one model more
    shutil.rmtree(copy)
    home.rename(copy)
    assert len(launch(copy, 3).finished) == 3
    shutil.copytree(copy, home)  # as onto another disk
    shutil.rmtree(copy)
    assert len(launch(home, 4).finished) == 4
    assert load_optuna_study(home).user_attrs[HOME]["path"] == str(home)

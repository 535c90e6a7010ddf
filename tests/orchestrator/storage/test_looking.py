"""A look at a run changes nothing, and needs no right to write."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from maskfront import Study
from orchestrator.errors import RunError
from orchestrator.runs.records import WORKER, load_optuna_study
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import storage_status
from orchestrator.storage.connect import open_storage, read_storage
from orchestrator.storage.urls import sqlite_url
from orchestrator.workers.heartbeat import Heartbeat
from tests.launching import run_study
from tests.orchestrator.methods import scripted
from tests.servers import Postgres

_NOT_ALLOWED = "-dac_override,-dac_read_search"
"""What lets root write and read all files."""


def as_a_reader(*arguments: object) -> str:
    """What maskfront prints to one who may not write where the files' modes say so."""
    rights = [f"--bounding-set={_NOT_ALLOWED}", f"--inh-caps={_NOT_ALLOWED}"]
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv that would take it away")
    done = subprocess.run(
        [
            *(["setpriv", *rights] if os.geteuid() == 0 else []),
            *(sys.executable, "-m", "orchestrator.command.cli"),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def take_away_writing(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode & ~0o222)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("journal", marks=pytest.mark.slow)])
def test_a_run_may_be_looked_at_without_writing(study: Study, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run, 50% #1?"
    url = f"journal:///{folder}/study.journal" if kind == "journal" else None
    folder.mkdir()
    run_study(scripted(study, "result"), folder, trials=1, storage=url)
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in written if not path.stat().st_mode & 0o004] == [], "for one account"
    take_away_writing(folder)
    before = contents(folder)
    assert "1 finished" in as_a_reader("status", folder)
    assert "1.000" in as_a_reader("front", folder)
    as_a_reader("report", folder, "--out", tmp_path / "page.html")
    assert contents(folder) == before


def test_one_that_is_at_work_can_be_looked_at_too(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_study(scripted(study, "result"), folder, trials=1)
    optuna_study = load_optuna_study(folder)
    with Heartbeat(optuna_study, RunFolder(folder), "cpu") as beating:
        optuna_study.ask().set_user_attr(WORKER, beating.record.name)
        take_away_writing(folder)
        lines = as_a_reader("status", folder)
        (folder / "workers").chmod(0o755)
    assert "1 finished, 1 running" in lines
    assert f"{beating.record.name} on cpu: alive" in lines


def test_a_look_makes_no_storage(tmp_path: Path) -> None:
    gone = tmp_path / "gone.db"
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_address(sqlite_url(gone), "study", "id")
    with pytest.raises(RunError, match="there is no storage sqlite"):
        load_optuna_study(folder.path)
    assert not gone.exists()


def test_a_database_that_optuna_made_stays_as_it_is(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    optuna.create_study(storage=url, study_name="theirs")
    before = contents(tmp_path)
    assert [study.study_name for study in read_storage(url).get_all_studies()] == ["theirs"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize("look", [open_storage, read_storage])
def test_another_programs_database_is_left_alone(tmp_path: Path, look: object) -> None:
    path = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    assert callable(look)
    with pytest.raises(RunError, match=r"bookmarks\.db' is not an Optuna database"):
        look(sqlite_url(path))
    with pytest.raises(RunError, match="is not an Optuna database"):
        storage_status(sqlite_url(path), None)
    assert path.read_bytes() == before


def test_what_is_read_may_be_written_where_its_files_may(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    optuna.create_study(storage=open_storage(url), study_name="s")
    optuna.load_study(storage=read_storage(url), study_name="s").set_user_attr("note", "mine")
    again = optuna.load_study(storage=open_storage(url), study_name="s")
    assert again.user_attrs == {"note": "mine"}


def test_a_look_sees_what_comes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dashboard does, of a run that others may write and it may not."""
    url = sqlite_url(tmp_path / "study.db")

    def write_a_trial() -> None:
        writer = optuna.storages.RDBStorage(url)
        optuna.create_study(storage=writer, study_name="s", load_if_exists=True).ask()
        writer.engine.dispose()

    write_a_trial()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "access", lambda _, mode: mode != os.W_OK)
        storage = read_storage(url)
    look = optuna.load_study(storage=storage, study_name="s")
    assert len(look.get_trials(deepcopy=False)) == 1
    write_a_trial()
    assert len(look.get_trials(deepcopy=False)) == 2


def test_a_look_at_a_server_makes_no_tables(postgres: Postgres) -> None:
    url = postgres.new_database()
    with pytest.raises(RunError, match="not an Optuna database, or is empty"):
        read_storage(url)
    optuna.create_study(storage=open_storage(url), study_name="theirs")
    assert [study.study_name for study in read_storage(url).get_all_studies()] == ["theirs"]

"""A run's folder: its files are written whole or not at all, and one launch holds it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from objectives.cache import is_free, kernel_lock
from orchestrator.dashboard.server import application
from orchestrator.errors import RunError
from orchestrator.runs.records import read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status
from orchestrator.storage.connect import open_storage
from orchestrator.storage.urls import hidden, parse_url
from orchestrator.workers.loop import address


def test_a_second_launch_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with (
        folder.locked(),
        pytest.raises(RunError, match=r"in use by another launch; .* if it runs this study, or"),
        folder.locked(),
    ):
        pass


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: there is no study\.db"):
        RunFolder(tmp_path).existing()


@pytest.mark.parametrize("name", ["why?", "%41", "a#b", "{x}", "at@home:8", "grün"])
def test_a_run_lies_in_its_folder_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / name)
    folder.path.mkdir()
    optuna.create_study(storage=open_storage(folder.storage), study_name="tiny")
    assert folder.database.is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert folder.is_own(hidden(parse_url(folder.storage)))


def test_a_damaged_address_is_said_and_a_damaged_launch_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_address("grpc://h:1", "tiny", "id")
    folder.write_launch("maskfront run a.py", "", "a.py")
    assert folder.study_name == "tiny"
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(RunError, match=r"storage\.json' is damaged .*; restore it from a copy"):
        _ = folder.storage
    assert folder.read_launch() is None


@pytest.mark.parametrize("part", ["artifacts", "cache", "trials", "workers"])
def test_a_part_that_is_a_link_is_refused(tmp_path: Path, part: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.database.touch()
    (folder.path / part).symlink_to(tmp_path / "elsewhere")
    for look in (read_run, run_status, application, lambda path: address(RunFolder(path), None)):
        with pytest.raises(RunError, match=f"run/{part}' is a link; put the folder itself there"):
            look(folder.path)


@pytest.mark.parametrize("target", ["missing", "there"])
def test_a_lock_is_no_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "lock").symlink_to(tmp_path / target)
    with pytest.raises(OSError, match="symbolic links"), kernel_lock(tmp_path / "lock"):
        pass
    assert is_free(tmp_path / "lock") is None
    assert not (tmp_path / "missing").exists()

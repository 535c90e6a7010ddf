"""A run's folder: its files are written whole or not at all, and one launch holds it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage
from orchestrator.storage.urls import hidden, parse_url


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
    with pytest.raises(RunError, match=r"storage\.json' is damaged .*: restore it from a copy"):
        _ = folder.storage
    assert folder.read_launch() is None

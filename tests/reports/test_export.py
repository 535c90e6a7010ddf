"""From a trial to a model folder: whole, over nothing, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.records import RunRecord
from reports.export import export

FILES = {"architecture.json", "result.json", "config.json", "model.safetensors", "vocab.txt"}


@pytest.fixture
def run(tmp_path: Path, make_run: Any, make_trial: Any) -> RunRecord:
    """Trials 3 and 1 have finished; the folder of trial 3 is on the disk."""
    folder = tmp_path / "runs" / "tiny"
    model = folder / "trials" / "00003" / "model"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (model / name).write_text(name)
    for name in ("architecture.json", "result.json", "curve.csv"):
        (model.parent / name).write_text(name)
    trials = [make_trial(3, 500_000, 0.8), make_trial(1, 600_000, 0.8, target=0.2)]
    record: RunRecord = make_run(trials, folder=folder)
    return record


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("exists", [False, True])
def test_copies_model_architecture_and_result(run: RunRecord, tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "to" / "my-model"
    if exists:
        out.mkdir(parents=True)
    assert export(run, 3, out) == out
    assert names(out) == FILES
    assert (out / "model.safetensors").read_text() == "model.safetensors"
    assert names(out.parent) == {"my-model"}


def test_exports_into_an_empty_current_folder(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    export(run, 3, Path("."))
    assert names(here) == FILES


@pytest.mark.parametrize("trial", [0, -1])
def test_names_the_finished_trials(run: RunRecord, tmp_path: Path, trial: int) -> None:
    with pytest.raises(RunError, match=f"no finished trial {trial}; finished: 1, 3$"):
        export(run, trial, tmp_path / "out")


def test_a_run_without_finished_trials_says_so(make_run: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"finished: none yet$"):
        export(make_run(), 0, tmp_path / "out")


def test_a_model_that_is_gone(run: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"00001.*is gone"):
        export(run, 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_never_overwrites(run: RunRecord, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for out in (folder, folder / "thesis.txt"):
        with pytest.raises(RunError, match="exists and is not an empty folder"):
            export(run, 3, out)
    assert names(folder) == {"thesis.txt"}
    assert (folder / "thesis.txt").read_text() == "mine"


def test_leaves_nothing_behind_when_it_fails(run: RunRecord, tmp_path: Path) -> None:
    (run.folder / "trials" / "00003" / "result.json").unlink()
    with pytest.raises(FileNotFoundError):
        export(run, 3, tmp_path / "to" / "my-model")
    assert names(tmp_path / "to") == set()

"""Finished trials of a run and the folders of their models, checked."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.run_folder import RunFolder

_WEIGHTS = "model.safetensors"


def model_folder(run: RunRecord, trial: int) -> Path:
    """Folder of a finished trial's model. Raises RunError if there is none."""
    check_finished(run, trial)
    folder = RunFolder(run.folder).model(trial)
    if not (folder / _WEIGHTS).is_file():
        raise RunError(
            f"'{folder}', the model of trial {trial}, is gone; choose another trial, "
            "or put the folder back"
        )
    return folder


def kept_front(run: RunRecord, say: Callable[[str], object]) -> list[FinishedTrial]:
    """Front without deleted models, which `say` reports. Raises RunError if none is left."""
    folder = RunFolder(run.folder)
    front = [trial for trial in run.front if (folder.model(trial.number) / _WEIGHTS).is_file()]
    for trial in run.front:
        if not front:
            model_folder(run, trial.number)  # raises
        if trial not in front:
            say(f"trial {trial.number} is left out: its model is gone")
    return front


def check_finished(run: RunRecord, trial: int) -> None:
    """Raise RunError for a trial that has not finished, with its state."""
    check_run(run)
    row = next((row for row in run.trials if row.number == trial), None)
    if row is not None and row.result is not None:
        return
    finished = ", ".join(str(n) for n in sorted(row.number for row in run.finished)) or "none yet"
    if row is None:
        raise RunError(f"'{run.folder}' has no trial {trial}; finished: {finished}")
    failure = "" if row.failure is None else f" ({row.failure})"
    raise RunError(
        f"'{run.folder}': trial {trial} has no model, it is {row.state}{failure}; "
        f"finished: {finished}"
    )


def check_run(run: object) -> None:
    """Raise RunError unless `run` is a run; its folder is not."""
    if not isinstance(run, RunRecord):
        raise RunError(
            f"{run!r} is a {type(run).__name__}, not a Run; read one from its folder with "
            "maskfront.load_run('runs/STUDY')"
        )

"""From a point of the front to a model folder that can be moved anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.records import RunRecord
from orchestrator.run_folder import written_whole


def export(run: RunRecord, trial: int, out: Path) -> Path:
    """Copy a finished trial's model, architecture.json and result.json to `out`; returns `out`.

    It is written whole or not at all, and over nothing.
    Raises RunError if the trial has no model, or if `out` already holds something.
    """
    models = {row.number: row.result.model for row in run.trials if row.result is not None}
    if trial not in models:
        finished = ", ".join(str(number) for number in sorted(models)) or "none yet"
        raise RunError(f"'{run.folder}' has no finished trial {trial}; finished: {finished}")
    model = run.folder / models[trial]
    if not model.is_dir():
        raise RunError(
            f"'{model}', the model of trial {trial}, is gone; export another trial, "
            "or put the folder back"
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunError(f"'{out}' exists and is not an empty folder; choose another with --out")
    with written_whole(out.resolve()) as unfinished:  # "." has no name of its own to write beside
        shutil.copytree(model, unfinished, dirs_exist_ok=True)
        for name in ("architecture.json", "result.json"):
            shutil.copy2(model.parent / name, unfinished / name)
    return out

"""The data of the page as one JSON document: what its cards, tables and switch read."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.runs.records import RunRecord, TrialRecord
from orchestrator.runs.results import Measured
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.sizes import in_numbers
from reports.curves import Curves, points_each
from reports.overlay import Overlay
from reports.pareto import state_text
from reports.speed import Speed


def document(
    overlay: Overlay,
    curves: Sequence[Curves],
    speeds: Sequence[Sequence[Speed]],
    commands: Sequence[str],
    page_folder: Path,
) -> dict[str, Any]:
    """Everything but the figures, as plain data.

    `commands` are the export commands of the runs, without trial and folder; links to artifacts are
    relative to `page_folder`.
    """
    return {
        "format": "maskfront-report-1",
        "metric": overlay.metric_name,
        "cost": overlay.cost_name,
        "units": list(overlay.units),
        "latencies": latency_units(speeds),
        "beside": _beside(speeds, overlay.runs[0].bits),
        "runs": [
            {
                "name": name,
                "metric": run.metric_name,
                "unit": run.unpruned.unit,
                "export": command,
                "unpruned": {
                    "label": run.unpruned.label,
                    **_measured(run.unpruned),
                    **_served(run, timed, None),
                },
                "front": [trial.number for trial in run.front],
                "trials": [
                    _trial(run, trial, of_run, page_folder) | _served(run, timed, trial.number)
                    for trial in run.trials
                ],
            }
            for name, run, of_run, timed, command in zip(
                overlay.names, overlay.runs, curves, speeds, commands, strict=True
            )
        ],
    }


def latency_units(speeds: Sequence[Sequence[Speed]]) -> tuple[str, ...]:
    """The units in which the fronts of all runs were timed."""
    first, *others = ([speed.unit for speed in of_run] for of_run in speeds)
    return tuple(unit for unit in first if all(unit in other for other in others))


def latency_axes(speeds: Sequence[Sequence[Speed]], bits: int) -> tuple[str, ...]:
    """Units in which the front may be drawn: scores hold for these bits only."""
    full = {speed.unit for of_run in speeds for speed in of_run if speed.bits == bits}
    return tuple(unit for unit in latency_units(speeds) if unit in full)


def _beside(speeds: Sequence[Sequence[Speed]], bits: int) -> dict[str, dict[str, str]]:
    """For each of these axes the unit of each engine with other bits, on the same shape."""
    every = {speed.unit: speed for of_run in speeds for speed in of_run}
    return {
        axis: {
            speed.engine: unit
            for unit, speed in every.items()
            if speed.bits != bits and speed.shape == every[axis].shape
        }
        for axis in latency_axes(speeds, bits)
    }


def _served(run: RunRecord, speeds: Sequence[Speed], trial: int | None) -> dict[str, Any]:
    """Milliseconds of a model, or of the unpruned one, and for each engine what its card says."""
    latencies, engines = {}, {}
    for speed in speeds:
        model = speed.unpruned_model(run.unpruned) if trial is None else speed.models.get(trial)
        if model is None:
            continue
        latencies[speed.unit] = model.milliseconds
        worth = {} if model.worth is None else asdict(model.worth)
        engines[speed.engine] = {"megabytes": model.megabytes, **worth}
    return {"latencies": latencies, "engines": engines} if latencies else {}


def _trial(run: RunRecord, trial: TrialRecord, curves: Curves, page_folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": trial.number, "state": state_text(trial), "knobs": trial.knobs}
    if trial.failure:
        row["failure"] = trial.failure
    if trial.attributes:
        row["attributes"] = dict(trial.attributes)
    if trial.seconds is not None:
        row["seconds"] = round(trial.seconds, 1)
    if (result := trial.result) is not None:
        row |= _measured(result)
        row |= {"target_ratio": result.target_ratio, "tolerance": result.tolerance}
        if sizes := in_numbers(result.widths, run.unpruned.widths):
            row["layers"] = sizes
        folder = RunFolder(run.folder).trial(trial.number)
        if folder.is_dir():
            row["folder"] = Path(os.path.relpath(folder, page_folder)).as_posix()
            row["files"] = sorted(path.name for path in folder.iterdir() if path.is_file())
    if curve := curves.get(trial.number):
        row["stages"] = curve.stages
        row["curve"] = {
            name: [list(axis) for axis in zip(*values, strict=True)]
            for name, values in curve.thinned(points_each(len(curves))).items()
        }
    return row


def _measured(model: Measured) -> dict[str, Any]:
    worth = ("metric", "heldout_metric", "interval", "heldout_interval", "divergences")
    far = ("divergence", "train_divergence")
    return {name: getattr(model, name) for name in (*worth, *far, "ratio", "sizes")}

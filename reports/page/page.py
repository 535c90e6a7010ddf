"""Report: one HTML page of a run, or several on the same axes, without network."""

import base64
import gzip
import json
import os
import secrets
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from objectives.cache import atomic_write_text
from objectives.workbench.words import NAME
from orchestrator.runs.records import RunRecord, TrialRecord
from orchestrator.runs.results import Measured, ratio_text, size_text
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.sizes import in_numbers
from orchestrator.terminal import for_shell
from reports.curves import Curves, gap_note, points_each, read_curves
from reports.exporting.card import STRICT
from reports.figures.architectures import architecture_section
from reports.figures.budget import budget_section
from reports.figures.cascades import add_cascades, cascades_of, stages_text
from reports.figures.compressed import compressed_section
from reports.figures.front import add_served, front_figure
from reports.figures.outer_loop import outer_section
from reports.figures.speed import speed_section
from reports.overlay import Overlay, Runs, overlay
from reports.pareto import knob_texts, percent, state_text
from reports.recommended import answer, certainty, recommendations
from reports.speed import Speed, fastest, read_speeds, shape_text


def document(
    overlay: Overlay,
    curves: Sequence[Curves],
    speeds: Sequence[Sequence[Speed]],
    commands: Sequence[str],
    page_folder: Path,
) -> dict[str, Any]:
    """Everything but the figures, as plain data; links are relative to `page_folder`."""
    return {
        "format": "maskfront-report-1",
        "metric": overlay.metric_name,
        "cost": overlay.cost_name,
        "units": list(overlay.units),
        "latencies": latency_units(speeds),
        "words": {speed.unit: speed.unit_text for of_run in speeds for speed in of_run},
        "beside": latency_axes(speeds, overlay.runs[0].bits),
        "runs": [
            {
                "name": name,
                "metric": run.metric_name,
                "task_metric": run.task_metric,
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
    """Units in which the fronts of all runs were timed."""
    first, *others = ([speed.unit for speed in of_run] for of_run in speeds)
    return tuple(unit for unit in first if all(unit in other for other in others))


def latency_axes(speeds: Sequence[Sequence[Speed]], bits: int) -> dict[str, dict[str, str]]:
    """Latency units in which the front may be drawn, with the bits that the scores are of; for each
    the units of engines with other bits on the same shape."""
    every = {speed.unit: speed for of_run in speeds for speed in of_run}
    return {
        axis: {
            speed.engine: unit
            for unit, speed in every.items()
            if speed.bits != bits and speed.shape == every[axis].shape
        }
        for axis in latency_units(speeds)
        if every[axis].bits == bits
    }


def _served(run: RunRecord, speeds: Sequence[Speed], trial: int | None) -> dict[str, Any]:
    """Milliseconds of a model, or of the unpruned one, and the text of its card for each engine."""
    latencies, engines = {}, {}
    for speed in speeds:
        model = speed.timed(trial, run.unpruned)
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
        points = curve.thinned(points_each(len(curves)))
        row["curve"] = {n: [list(axis) for axis in zip(*v, strict=True)] for n, v in points.items()}
    return row


def _measured(model: Measured) -> dict[str, Any]:
    worth = ("metric", "heldout_metric", "interval", "heldout_interval", "divergences")
    far = ("divergence", "train_divergence")
    return {name: getattr(model, name) for name in (*worth, *far, "ratio", "sizes")}


_HERE = Path(__file__).parent


def write_report(runs: Runs, target: str | Path, live: bool = False) -> Path:
    """Write the page of one run or of several, whole or not at all.

    Args:
        runs: one run, or several to be shown on the same axes.
        target: the HTML file.
        live: add a switch that reloads the page.

    Returns:
        The file.

    Raises:
        RunError: if the runs share no axes.
        OSError: if the disk refuses.
    """
    target = Path(target)
    together = overlay(runs)
    curves = [read_curves(run) for run in together.runs]
    speeds = [read_speeds(run) for run in together.runs]
    shape = next((speed.shape for speed in chain(*speeds)), None)
    parts = [_part(together, index, of_run, shape) for index, of_run in enumerate(speeds)]
    sections = [speed_section(together, speeds), budget_section(together, curves)]
    sections += [architecture_section(together), outer_section(together)]
    data = document(together, curves, speeds, [part["export"] for part in parts], target.parent)
    front = front_figure(together)
    add_served(front, together, speeds)
    add_cascades(front, together, [part["cascades"] for part in parts])
    content = _template().render(
        title=f"{', '.join(together.names)}: {together.objective_name} against "
        f"{together.cost_name}",
        overlay=together,
        parts=parts,
        written=None if together.several else compressed_section(together.runs[0]),
        recommended=[(part, row) for part in parts for row in recommendations(part["view"])],
        front=front,
        sections=[section for section in sections if section is not None],
        # Null for numbers that JSON does not have.
        document=json.loads(json.dumps(data), parse_constant=lambda _: None),
        latencies=tuple(data["beside"]),
        words=data["words"],
        unscored=[part for part in parts if not part["scored"]],
        fastest=lambda part, trial: fastest(part["record"], part["timed"], trial),
        timed=None if shape is None else shape_text(*shape),
        words_name=NAME,
        live=live,
        nonce=secrets.token_urlsafe(16),
        css=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        plotly=_packed_plotly(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(target, content)
    return target


def _part(
    together: Overlay, index: int, speeds: Sequence[Speed], shape: tuple[int, int, bool] | None
) -> dict[str, Any]:
    """Values of a run for the templates; `shape` is that of the times in its table."""
    run = together.runs[index]
    view, folder = together.views[index], for_shell(run.folder)
    launch = RunFolder(run.folder).read_launch()
    study_file = "STUDY.py" if launch is None else launch.study_file
    return {
        "index": index,
        "name": together.names[index],
        "record": run,
        "notes": (*run.notes, *run.remarks, *filter(None, [gap_note(run)])),
        "view": view,
        "answer": f"{answer(view)} {certainty(view)}".strip(),
        "counts": Counter(map(state_text, run.trials)),
        "folder": folder,
        "export": f"maskfront export {folder}",
        "launch": launch and replace(launch, command=_command(launch.command)),
        "study_file": study_file and for_shell(study_file),
        "cascades": cascades_of(run),
        "scored": any(model.worth for speed in speeds for model in speed.models.values()),
        "timed": [speed for speed in speeds if speed.shape == shape],
    }


def _command(text: str) -> str:
    """Command from a run folder, without special characters: a stranger may have written it."""
    with suppress(ValueError):
        return " ".join(map(for_shell, shlex.split(text)))
    return for_shell(text)


@cache
def _template() -> Template:
    loader = FileSystemLoader(_HERE / "templates")
    environment = Environment(loader=loader, autoescape=True, **STRICT)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {
        "stages": stages_text,
        "knobs": knob_texts,
        "size": size_text,
        "percent": percent,
        "ratio": partial(ratio_text, decimals=4),
        "state": state_text,
        "packed": _packed,
    }
    return environment.get_template("page.html.j2")


@cache
def _packed_plotly() -> str:
    """Plotly's script, compressed from 5 MB to 2."""
    return _packed(get_plotlyjs())


def _packed(text: str) -> str:
    """Text as base64 of gzip: a fifth of its size, and nothing in it closes an element."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()

"""Search methods side by side on one task: numbers, tables in Markdown, a figure."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from objectives.cache import cached_array, content_key, kernel_lock
from objectives.measures.bootstrap import RESAMPLES, resampled_metrics
from objectives.measures.evaluate import predict
from objectives.metric import Floats
from objectives.students.bert import pretrained
from objectives.text.data import Split
from objectives.workbench.inputs import Inputs
from orchestrator.errors import RunError
from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import RunRecord
from orchestrator.runs.results import Measured, TrialResult
from orchestrator.runs.run_folder import RunFolder
from reports.figures.outer_loop import Steps, share_covered
from reports.figures.theme import AXIS, LAYOUT, plain, run_line, run_style

RATIOS = (0.75, 0.5, 0.33, 0.25, 0.1)
SPLITS = ("select", "heldout")
"""Splits: the first chooses a model; neither taught it."""
_SLACK = 0.01
"""Share by which a model may be dearer than the ratio that it is named for."""
_LEVEL = 0.95

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
Samples = Callable[[Path, str], Values]
"""Metric of a saved model on each sample of a split: the same samples for every model."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How much better than the best baseline, the mean over the seeds, and its 95% interval.

    A paired bootstrap over rows and seeds at once. Of few seeds it covers less than 95%: of three
    72% if only they differ, 94% if rows differ as much (simulated).
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a method keeps at a ratio, on one split."""

    metrics: tuple[float, ...]
    """Metric of each seed's best model."""
    gain: Gain | None
    """None of the best baseline itself, and where no baseline has a model."""

    @property
    def metric(self) -> float:
        """The mean over the seeds."""
        return fmean(self.metrics)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Measures of one method."""

    baseline: bool
    areas: Mapping[str, tuple[float, ...]]
    """By split, for each seed: area under the chosen models, as a share of the ideal."""
    kept: Mapping[str, Mapping[float, Kept | None]]
    """By split and ratio; None where a seed has no model so cheap."""
    trials: tuple[int, ...]
    """Finished trials of each seed."""
    seconds: float
    """Seconds of a trial."""
    ratio_error: float
    """Mean of |ratio - R| / R over all trials."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods on one task."""

    metric_name: str
    cost_name: str
    unpruned: Mapping[str, float]
    """The teacher's metric by split."""
    seeds: int
    contestants: Mapping[str, Contestant]
    best_baseline: Mapping[float, str | None]
    """At each ratio, by the mean metric on the selection split."""


def compare(
    runs: Mapping[str, Sequence[RunRecord]],
    *,
    baselines: Set[str],
    samples: Samples,
    ratios: Sequence[float] = RATIOS,
) -> Comparison:
    """Compare methods by their runs, one a seed, in one order.

    Raise RunError if task, teacher, fidelity, seeds or numbers of trials differ.
    """
    first = next(iter(runs.values()))[0]
    _check(runs, first)
    models_of = {
        name: {ratio: _best_at(own, ratio) for ratio in ratios} for name, own in runs.items()
    }
    best = {ratio: _best_baseline(models_of, baselines, ratio) for ratio in ratios}

    def kept(name: str, ratio: float, role: str) -> Kept | None:
        models, rival = models_of[name][ratio], best[ratio]
        if models is None:
            return None
        metrics = tuple(metric_on(role, result) for _, result in models)
        rivals = None if rival in (None, name) else models_of[rival][ratio]
        if rivals is None:
            return Kept(metrics=metrics, gain=None)
        pairs = [(ours, theirs) for (ours, _), (theirs, _) in zip(models, rivals, strict=True)]
        low, high = _interval([samples(a, role) - samples(b, role) for a, b in pairs])
        mean = fmean(metrics) - fmean(metric_on(role, result) for _, result in rivals)
        return Kept(metrics=metrics, gain=Gain(mean=mean, low=low, high=high))

    return Comparison(
        metric_name=first.metric_name,
        cost_name=first.unpruned.cost_name,
        unpruned={role: metric_on(role, first.unpruned) for role in SPLITS},
        seeds=len(next(iter(runs.values()))),
        contestants={
            name: Contestant(
                baseline=name in baselines,
                areas={role: tuple(_area(role, run) for run in own) for role in SPLITS},
                kept={
                    role: {ratio: kept(name, ratio, role) for ratio in ratios} for role in SPLITS
                },
                trials=tuple(len(run.finished) for run in own),
                seconds=sum(BusyClock(run.finished).now for run in own)
                / max(1, sum(len(run.finished) for run in own)),
                ratio_error=_ratio_error(own),
            )
            for name, own in runs.items()
        },
        best_baseline=best,
    )


def chosen(role: str, run: RunRecord) -> list[tuple[float, float]]:
    """Return the models of the front, as the ratio rises: ratio, and metric on a split."""
    # The selection split chooses: held out, a dearer model may be worth less than a cheaper one.
    return [(trial.result.ratio, metric_on(role, trial.result)) for trial in run.front]


def metric_on(role: str, measured: Measured) -> float:
    """Return the metric on a split."""
    return measured.metric if role == "select" else measured.heldout_metric


def _area(role: str, run: RunRecord) -> float:
    return share_covered(chosen(role, run), metric_on(role, run.unpruned))


def _check(runs: Mapping[str, Sequence[RunRecord]], first: RunRecord) -> None:
    seeds = {name: [run.definition.get("seed") for run in own] for name, own in runs.items()}
    if any(own != next(iter(seeds.values())) for own in seeds.values()):
        raise RunError(
            f"the methods have different seeds: {seeds}; give each the same, in one order"
        )
    counts = {name: [len(run.finished) for run in own] for name, own in runs.items()}
    if len({count for own in counts.values() for count in own}) > 1:
        raise RunError(
            f"the studies have different numbers of finished trials: {counts}; the best of more is "
            "better by chance alone: launch those that have fewer again"
        )
    for run in (run for own in runs.values() for run in own):
        for part in ("task.data", "task.metric", "cost", "seq_len", "teacher.checkpoint"):
            known, other = first.definition.get(part), run.definition.get(part)
            if known != other:
                raise RunError(
                    f"'{run.folder}' has {part} {other}, '{first.folder}' has {known}; methods "
                    "are compared on one task, with one teacher"
                )
        if run.fidelity != first.fidelity:
            raise RunError(
                f"'{run.folder}' has fidelity {run.fidelity or 'full'}, '{first.folder}' has "
                f"{first.fidelity or 'full'}; methods are compared at one fidelity"
            )


Model = tuple[Path, TrialResult]
"""Folder of a cut model, and its result."""


def _best_at(runs: Sequence[RunRecord], ratio: float) -> list[Model] | None:
    """Return the best model of each run at this ratio; None if a run has none so cheap."""
    models = []
    for run in runs:
        within = [trial for trial in run.front if trial.result.ratio <= (1 + _SLACK) * ratio]
        if not within:
            return None
        models.append((RunFolder(run.folder).model(within[-1].number), within[-1].result))
    return models


def _best_baseline(
    models_of: Mapping[str, Mapping[float, list[Model] | None]], baselines: Set[str], ratio: float
) -> str | None:
    means = {
        name: fmean(result.metric for _, result in models)
        for name, own in models_of.items()
        if name in baselines and (models := own[ratio])
    }
    return max(means, key=lambda name: means[name], default=None)


def _interval(differences: Sequence[Values]) -> tuple[float, float]:
    """Bootstrap rows and seeds at once: the interval of the mean over the seeds."""
    # Sample i of each seed has the same rows.
    of_seeds = np.stack(differences)
    seeds, draws = of_seeds.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(seeds, draws))
    means = np.take_along_axis(of_seeds, drawn, axis=0).mean(0)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _ratio_error(runs: Sequence[RunRecord]) -> float:
    errors = [
        abs(trial.result.ratio - trial.result.target_ratio) / trial.result.target_ratio
        for run in runs
        for trial in run.finished
    ]
    return fmean(errors) if errors else float("nan")


class Resampled:
    """The metric of a saved model on each sample of a split, predicted once for each model."""

    def __init__(
        self,
        inputs: Inputs,
        *,
        kept: Path,
        device: str,
        note: Callable[[str], object] = warnings.warn,
    ):
        """Keep the numbers of each model in `kept`; `note` hears of a damaged file there."""
        self._inputs, self._kept, self._device, self._note = inputs, kept, device, note
        self._splits: dict[str, Split] = {}

    def __call__(self, model: Path, role: str) -> Floats:
        """Return (500,) metrics: the same samples of rows for every model."""
        task, text = self._inputs.task, self._inputs.text
        made_of = {
            "model": pretrained.fingerprint_of_weights(str(model)),
            "data": text.fingerprint,
            "role": role,
            "metric": task.metric,
            "max_length": task.max_length,
        }
        file = self._kept / f"{content_key(made_of)}.npy"
        self._kept.mkdir(parents=True, exist_ok=True)
        with kernel_lock(self._kept / ".lock"):
            return cached_array(
                file, (RESAMPLES,), np.float64, self._note, lambda: self._measured(model, role)
            )

    def _measured(self, model: Path, role: str) -> Floats:
        if role not in self._splits:
            self._splits[role] = self._inputs.split(role)
        split = self._splits[role]
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            loaded: Any = pretrained.Checkpoint(str(model)).load_classifier()
        logits = predict(loaded, split, self._device)
        answers, classes = split.answers(logits).numpy(), logits.shape[-1]
        return resampled_metrics(self._inputs.task.metric, split.labels, answers, classes)


_NAMES = {"select": "selection split", "heldout": "held-out split"}


def attainment(curves: Sequence[Steps], level: float) -> list[tuple[float, float]]:
    """Return the metric that a share `level` of step curves reach at each ratio.

    The empirical attainment surface of fronts (Fonseca and Fleming 1996).
    """
    needed, levels = max(1, math.ceil(level * len(curves))), list[tuple[float, float]]()
    for ratio in sorted({ratio for curve in curves for ratio, _ in curve}):
        reached = [bisect_right(curve, ratio, key=lambda step: step[0]) for curve in curves]
        heights = sorted(
            (curve[n - 1][1] for curve, n in zip(curves, reached, strict=True) if n), reverse=True
        )
        if len(heights) >= needed and (not levels or heights[needed - 1] != levels[-1][1]):
            levels.append((ratio, heights[needed - 1]))
    return levels


def comparison_figure(runs: Mapping[str, Sequence[RunRecord]], comparison: Comparison) -> go.Figure:
    """Draw the metric that half of the seeds reach at each ratio, on both splits."""
    figure = make_subplots(
        cols=2, shared_yaxes=True, subplot_titles=[_NAMES[role] for role in SPLITS]
    )
    for index, (name, of_name) in enumerate(runs.items()):
        for column, role in enumerate(SPLITS, start=1):
            half = attainment([chosen(role, run) for run in of_name], 0.5)
            figure.add_scatter(
                x=[ratio for ratio, _ in half],
                y=[metric for _, metric in half],
                mode="lines+markers",
                name=plain(name),
                legendgroup=name,
                showlegend=column == 1,
                line={**run_line(index), "shape": "hv"},
                marker={**run_style(index), "size": 7},
                col=column,
                row=1,
            )
    for column, role in enumerate(SPLITS, start=1):
        figure.add_hline(
            y=comparison.unpruned[role], line={"width": 1, "dash": "dash"}, col=column, row=1
        )
    figure.update_layout(
        **LAYOUT,
        width=1000,
        height=480,
        margin={"l": 60, "r": 20, "t": 40, "b": 60},
        legend={"orientation": "h", "y": -0.18},
    )
    figure.update_xaxes(
        **AXIS, title=f"{comparison.cost_name} ratio", tickformat=".0%", matches="x"
    )
    figure.update_yaxes(**AXIS)
    figure.update_yaxes(title=plain(comparison.metric_name), col=1)
    return figure


def comparison_tables(comparison: Comparison) -> str:
    """Write a table for each split in Markdown, the best method first.

    A cell is the mean over the seeds, with the interval of the gain on the best baseline.
    """
    return "\n".join(_table(comparison, role) for role in SPLITS)


def _table(comparison: Comparison, role: str) -> str:
    rows = comparison.contestants
    ratios = list(comparison.best_baseline)
    covered = "hypervolume" if role == "select" else "area"
    columns = ["method", f"{covered} (quartiles)", *(f"at {ratio:g}" for ratio in ratios)]
    columns += ["s a trial", "ratio error"]
    lines = [
        f"{plain(comparison.metric_name)} on the {_NAMES[role]} "
        f"(unpruned {comparison.unpruned[role]:.4f}, seeds: {comparison.seeds})",
        "",
        _line(columns),
        _line(["---"] * len(columns)),
    ]
    for name in sorted(rows, key=lambda name: -float(np.median(rows[name].areas[role]))):
        row = rows[name]
        low, middle, high = np.quantile(row.areas[role], (0.25, 0.5, 0.75))
        cells = [
            _cell(row.kept[role][ratio], name == comparison.best_baseline[ratio])
            for ratio in ratios
        ]
        lines.append(
            _line(
                [
                    f"{name} (baseline)" if row.baseline else name,
                    f"{middle:.4f} ({low:.4f} to {high:.4f})",
                    *cells,
                    f"{row.seconds:.1f}",
                    f"{row.ratio_error:.2%}",
                ]
            )
        )
    return "\n".join([*lines, ""])


def _cell(kept: Kept | None, best: bool) -> str:
    if kept is None:
        return "-"
    if kept.gain is None:
        return f"{kept.metric:.4f}" + " (best baseline)" * best
    return f"{kept.metric:.4f} [{kept.gain.low:+.4f}, {kept.gain.high:+.4f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

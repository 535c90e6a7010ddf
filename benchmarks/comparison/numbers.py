"""Search methods side by side on one task: each tuned by its own studies, one a seed. In numbers.

At each ratio a model is chosen on the selection split, and told on both: the second is free of the
choice. So held out a dearer model may be worth less than a cheaper one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from orchestrator.errors import RunError
from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import RunRecord
from orchestrator.runs.results import Measured, TrialResult
from orchestrator.runs.run_folder import RunFolder
from reports.figures.outer_loop import share_covered

RATIOS = (0.75, 0.5, 0.33, 0.25, 0.1)
SPLITS = ("select", "heldout")
"""By the first a model is chosen; neither taught it."""
_SLACK = 0.01
"""A model may be dearer than the ratio that it is named for by this share of it."""
_LEVEL = 0.95

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
Samples = Callable[[Path, str], Values]
"""The metric of a saved model on each sample of the bootstrap, on one of `SPLITS`; the
samples are of the same rows for every model."""


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
    """Of each seed's best model."""
    gain: Gain | None
    """None of the best baseline itself, and where no baseline has a model."""

    @property
    def metric(self) -> float:
        """The mean over the seeds."""
        return fmean(self.metrics)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """All that is told of one method."""

    baseline: bool
    areas: Mapping[str, tuple[float, ...]]
    """By split, of each seed: the area under what is chosen at each ratio, as a share of the ideal.
    On the selection split it is the hypervolume."""
    kept: Mapping[str, Mapping[float, Kept | None]]
    """By split and ratio; None where a seed has no model so cheap."""
    trials: tuple[int, ...]
    """Finished ones of each seed."""
    seconds: float
    """Of a trial."""
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
    """Compare methods by their runs, one a seed, the seeds in one order for all.

    Raises RunError if the runs are not of one task, one teacher, one fidelity and the same
    seeds.
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
    """The ratios at which the model to take changes, rising, and what the new one has on a split.

    They are the models of the front, which the selection split chooses.
    """
    return [(trial.result.ratio, metric_on(role, trial.result)) for trial in run.front]


def metric_on(role: str, measured: Measured) -> float:
    """The metric on a split of `SPLITS`."""
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
"""The folder of a cut model, and its result."""


def _best_at(runs: Sequence[RunRecord], ratio: float) -> list[Model] | None:
    """Of each run the model of its front that is best at this ratio, with its folder."""
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
    """Of the mean over the seeds: sample i draws rows, which the differences know, and seeds."""
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

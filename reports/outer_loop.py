"""How the outer loop went, in numbers: hypervolume, attainment, importance, where time went.

Hypervolume and importance are Optuna's own, of a study made from the records.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, create_trial

from orchestrator.busy_clock import BusyClock
from orchestrator.records import BUDGET, FinishedTrial, RunRecord

Steps = Sequence[tuple[float, float]]
"""A step curve: where it steps, rising, and how high it is from there on."""
FEWEST = 10
"""Finished trials below which an importance would be noise."""


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """How the front of a run grew, as a share of the ideal: the unpruned metric for nothing."""

    trials: tuple[int, ...]
    """Numbers of the finished trials, in the order in which they ended."""
    seconds: tuple[float, ...]
    """When they ended, on the run's busy clock; empty if no times are known."""
    shares: tuple[float, ...]


def reference_point(metric: float) -> tuple[float, float]:
    """The worst corner (metric, ratio) of the hypervolume: half the unpruned metric at ratio 1.

    It depends on the task alone, so that runs can be compared. Where the unpruned metric is 0 or
    less, as a correlation may be, it is that metric less 1.
    """
    return (metric / 2 if metric > 0 else metric - 1, 1.0)


def hypervolume(run: RunRecord) -> Hypervolume:
    """The hypervolume of metric and ratio after each finished trial."""
    ended = sorted(
        run.finished,
        key=lambda trial: (math.inf if trial.ended is None else trial.ended, trial.number),
    )
    if not ended:
        return Hypervolume(trials=(), seconds=(), shares=())
    worst, ratio = reference_point(run.unpruned.metric)
    from optuna.visualization import plot_hypervolume_history  # 1 s, with its importance

    with warnings.catch_warnings(), _optuna_says(optuna.logging.ERROR):  # no model is no fault
        warnings.simplefilter("ignore", ExperimentalWarning)
        figure = plot_hypervolume_history(_study(run, ended), [worst, ratio])
    ideal = (run.unpruned.metric - worst) * ratio
    clock, ends = BusyClock(run.trials), [t.ended for t in ended if t.ended is not None]
    return Hypervolume(
        trials=tuple(trial.number for trial in ended),
        seconds=tuple(map(clock, ends)) if clock else (),
        shares=tuple(float(value) / ideal for value in figure.data[0].y),
    )


def area(steps: Steps, worst: float, last: float) -> float:
    """The area under a step curve (ratio, metric), above `worst` and up to the ratio `last`."""
    return sum(
        max(0.0, metric - worst) * max(0.0, min(end, last) - ratio)
        for (ratio, metric), (end, _) in pairwise([*steps, (last, worst)])
    )


def quartiles(
    histories: Sequence[Sequence[tuple[float, float]]],
) -> tuple[list[float], list[list[float]]]:
    """Every x at which one of several step curves (x, y) steps, and the quartiles of all there.

    A curve is 0 before its first step. The result ends where the shortest curve ends.
    """
    end = min(history[-1][0] for history in histories)
    steps = sorted({x for history in histories for x, _ in history if x <= end})
    heights = [[_height(history, x) for history in histories] for x in steps]
    return steps, np.quantile(heights, (0.25, 0.5, 0.75), axis=1).tolist()


def _height(steps: Steps, x: float, before: float = 0.0) -> float:
    """How high a step curve (x, y) is at x; `before` its first step."""
    reached = bisect_right(steps, x, key=lambda step: step[0])
    return steps[reached - 1][1] if reached else before


def attainment(
    fronts: Sequence[Sequence[tuple[float, float]]], level: float
) -> list[tuple[float, float]]:
    """The metric that at least a share `level` of the runs reach at each ratio, as a staircase.

    The empirical attainment surface (Fonseca and Fleming 1996) of fronts of (ratio, metric).
    """
    return reached([_staircase(front) for front in fronts], level)


def _staircase(points: Sequence[tuple[float, float]]) -> Steps:
    """The best metric up to each ratio."""
    rising = sorted(points)
    best = accumulate((metric for _, metric in rising), max)
    return [(ratio, metric) for (ratio, _), metric in zip(rising, best, strict=True)]


def reached(curves: Sequence[Steps], level: float) -> list[tuple[float, float]]:
    """What at least a share `level` of step curves (ratio, metric) reach at each ratio.

    It begins where so many of them have begun, and falls where they do.
    """
    needed, levels = max(1, math.ceil(level * len(curves))), list[tuple[float, float]]()
    for ratio in sorted({ratio for curve in curves for ratio, _ in curve}):
        heights = sorted((_height(curve, ratio, -math.inf) for curve in curves), reverse=True)
        metric = heights[needed - 1]
        if math.isfinite(metric) and (not levels or metric != levels[-1][1]):
            levels.append((ratio, metric))
    return levels


def importances(run: RunRecord) -> dict[str, dict[str, float]]:
    """How much each knob decides of the best 10% of each objective (PED-ANOVA), summing to 1.

    Optuna's measure takes low values for good: a metric is negated before it sees it. Empty below
    `FEWEST` finished trials, or if the study tunes nothing.
    """
    ended = run.finished
    if len(ended) < FEWEST or not run.space:
        return {}
    study = _study(run, ended)
    targets = {
        run.metric_name: lambda trial: -trial.values[0],
        run.unpruned.cost_name: lambda trial: trial.values[1],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "low is good" is what we give it
        return {
            name: optuna.importance.get_param_importances(study, target=target)
            for name, target in targets.items()
        }


def _study(run: RunRecord, trials: Sequence[FinishedTrial]) -> optuna.Study:
    """The finished trials in this order, valued (metric, ratio), in memory."""
    space = run.space  # read once: it is JSON in the definition
    with _optuna_says(optuna.logging.WARNING):
        study = optuna.create_study(directions=["maximize", "minimize"])
        study.add_trials([_frozen(trial, space) for trial in trials])
    return study


@contextmanager
def _optuna_says(level: int) -> Iterator[None]:
    """Let Optuna say what is of this level, and no less."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(level)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _frozen(trial: FinishedTrial, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    knobs = {name: trial.knobs[name] for name in space if name in trial.knobs}
    return create_trial(
        values=[trial.result.metric, trial.result.ratio],
        params=knobs,
        distributions={name: space[name] for name in knobs},
        constraints={BUDGET: trial.result.violation},
    )

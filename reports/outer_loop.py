"""How the outer loop went, in numbers: hypervolume, importance."""

import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
import optuna
from optuna.trial import create_trial

from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import BUDGET, METHOD, FinishedTrial, RunRecord, pareto_front

Steps = Sequence[tuple[float, float]]
"""A step curve: where it steps, rising, and how high it is from there on."""
FEWEST = 10
"""Finished trials below which an importance would be noise."""


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """How the front of a run grew, as a share of the ideal: the unpruned model for nothing."""

    seconds: tuple[float, ...]
    """When each finished trial ended, on the run's busy clock; empty if no times are known."""
    shares: tuple[float, ...]
    """What the front covered then."""


def reference_point(worth: float) -> tuple[float, float]:
    """The worst corner (worth, ratio) of the hypervolume: half the unpruned worth at ratio 1.

    It depends on the task alone, so that runs can be compared. Where the unpruned worth is 0 or
    less, as a correlation may be and a divergence always is, it is that worth less 1.
    """
    return (worth / 2 if worth > 0 else worth - 1, 1.0)


def hypervolume(run: RunRecord) -> Hypervolume:
    """The hypervolume of worth and ratio after each finished trial."""
    ended = sorted(run.finished, key=attrgetter("end", "number"))
    front, volumes = list[FinishedTrial](), list[float]()
    for trial in ended:
        front = pareto_front([*front, trial])
        steps = [(one.result.ratio, one.result.worth) for one in front]
        volumes.append(share_covered(steps, run.unpruned.worth))
    clock, ends = BusyClock(run.trials), [t.ended for t in ended if t.ended is not None]
    return Hypervolume(seconds=tuple(map(clock, ends)) if clock else (), shares=tuple(volumes))


def share_covered(steps: Steps, unpruned: float) -> float:
    """The area under a step curve (ratio, metric), as a share of that under the metric `unpruned`.

    Both are counted from `reference_point`. Of a front it is the hypervolume.
    """
    worst, last = reference_point(unpruned)
    return area(steps, worst, last) / ((unpruned - worst) * last)


def area(steps: Steps, worst: float, last: float) -> float:
    """The area under a step curve (ratio, metric), above `worst` and up to the ratio `last`."""
    return sum(
        max(0.0, metric - worst) * max(0.0, min(end, last) - ratio)
        for (ratio, metric), (end, _) in pairwise([*steps, (last, worst)])
    )


def quartiles(histories: Sequence[Steps]) -> tuple[list[float], list[list[float]]]:
    """Every x at which one of several step curves (x, y) steps, and the quartiles of all there.

    A curve is 0 before its first step. The result ends where the shortest curve ends.
    """
    end = min(history[-1][0] for history in histories)
    steps = sorted({x for history in histories for x, _ in history if x <= end})
    heights = [[_height(history, x) for history in histories] for x in steps]
    return steps, np.quantile(heights, (0.25, 0.5, 0.75), axis=1).tolist()


def _height(steps: Steps, x: float) -> float:
    reached = bisect_right(steps, x, key=lambda step: step[0])
    return steps[reached - 1][1] if reached else 0.0


def importances(run: RunRecord) -> dict[str, dict[str, float]]:
    """How much each knob decides of the best 10% of each objective (PED-ANOVA), summing to 1.

    Optuna's measure takes low values for good: a worth is negated before it sees it. Of several
    methods the knobs of each sum to 1, over its own trials. Empty below `FEWEST` finished trials,
    or if the study tunes nothing.
    """
    groups: dict[str, list[FinishedTrial]] = {}
    for trial in run.finished:
        groups.setdefault(str(trial.knobs.get(METHOD, "")), []).append(trial)
    targets = {
        run.objective_name: lambda trial: -trial.values[0],
        run.unpruned.cost_name: lambda trial: trial.values[1],
    }
    found: dict[str, dict[str, float]] = {}
    for trials in groups.values():
        tuned = [name for name in run.space if name != METHOD and name in trials[0].knobs]
        if len(trials) < FEWEST or not tuned:
            continue
        study = _study(run, trials)
        # It warns that it takes low values for good: that is what it is given.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            for name, target in targets.items():
                own = optuna.importance.get_param_importances(study, params=tuned, target=target)
                found.setdefault(name, {}).update(own)
    return found


def _study(run: RunRecord, trials: Sequence[FinishedTrial]) -> optuna.Study:
    """The finished trials in this order, valued (worth, ratio), in memory."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # no line for each study that is made
    try:
        study = optuna.create_study(directions=["maximize", "minimize"])
    finally:
        optuna.logging.set_verbosity(verbosity)
    space = run.space  # read once: it is JSON in the definition
    for trial in trials:
        distributions = {name: space[name] for name in space if name in trial.knobs}
        study.add_trial(
            create_trial(
                values=[trial.result.worth, trial.result.ratio],
                params={name: trial.knobs[name] for name in distributions},
                distributions=distributions,
                constraints={BUDGET: trial.result.violation, **trial.result.aims},
            )
        )
    return study

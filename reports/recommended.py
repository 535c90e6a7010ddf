"""Which models of a front to look at first: the knee, the cheapest that lose little."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.runs.records import FinishedTrial
from orchestrator.runs.results import Measured
from reports.pareto import ParetoView


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A model of the front, and what it is the answer to."""

    reasons: tuple[str, ...]
    trial: FinishedTrial


def recommendations(view: ParetoView) -> list[Recommendation]:
    """The knee and the cheapest models within 1% and 3% of the unpruned metric, by falling cost.

    A model is within a loss if the upper end of the paired 95% interval of what it loses is; if
    none is, the cheapest that seems to be is named, with the rows that would tell. Where answers
    are not known the metrics alone decide. A model that answers several questions stands there
    once.
    """
    wanted: dict[int, list[str]] = {}
    metric = view.unpruned.metric
    for loss in (0.01, 0.03) if metric > 0 else ():
        if found := _within(view, loss):
            trial, reason = found
            wanted.setdefault(trial.number, []).append(reason)
    if (bend := knee([trial.result for trial in view.front])) is not None:
        wanted.setdefault(view.front[bend].number, []).append("knee")
    return [
        Recommendation(reasons=tuple(wanted[trial.number]), trial=trial)
        for trial in reversed(view.front)
        if trial.number in wanted
    ]


def _within(view: ParetoView, loss: float) -> tuple[FinishedTrial, str] | None:
    """The cheapest model of the front that loses at most this share, and how sure that is."""
    margin, words = loss * view.unpruned.metric, f"within {loss:.0%}"
    seems = [t for t in view.front if t.result.metric >= view.unpruned.metric - margin]
    if not seems:
        return None
    if view.paired is None:
        return seems[0], f"cheapest {words}"
    for trial in seems:
        most = view.paired.most_lost(trial)
        if most is not None and most <= margin:
            return trial, f"cheapest {words}"
    rows = view.paired.rows_to_decide(seems[0], margin)
    return seems[0], f"may be {words}" + (f" ({rows:,} rows would tell)" if rows else "")


def knee(front: Sequence[Measured]) -> int | None:
    """Place of the knee in a front that is sorted by rising cost.

    Both axes are scaled to [0, 1] from the cheapest to the costliest model of the front, costs by
    their logarithms where they are `wide`. The knee is the point furthest above the line that joins
    the two (Satopaa et al. 2011, "Finding a Kneedle in a haystack", without smoothing); of equals
    the cheapest. None if no point lies above it.
    """
    if len(front) < 3:
        return None
    worths, costs = [model.worth for model in front], [model.cost for model in front]
    if wide(costs):
        costs = [math.log(cost) for cost in costs]
    heights = [
        (worth - worths[0]) / (worths[-1] - worths[0]) - (cost - costs[0]) / (costs[-1] - costs[0])
        for worth, cost in zip(worths, costs, strict=True)
    ]
    highest = max(heights)
    return heights.index(highest) if highest > math.ulp(1.0) * 8 else None


def wide(costs: Collection[float]) -> bool:
    """Whether costs differ so much, over ten times, that a linear scale would crowd the cheap."""
    return min(costs, default=1) * 10 < max(costs, default=1) and min(costs) > 0

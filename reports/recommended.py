"""Which models of a front to look at first: the knee, the cheapest that lose little."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.measures.bootstrap import Floats
from orchestrator.runs.records import FinishedTrial
from orchestrator.runs.results import Measured
from reports.pareto import ParetoView

_EXPECTED = 0.01  # the loss within which the chosen model's metric is corrected for the choice


def cheapest_within(
    lost: Sequence[float], most_lost: Callable[[int], float | None], margin: float
) -> tuple[int, bool] | None:
    """The place of the cheapest model of a front that loses at most a margin, and whether it surely
    does: of the first by rising cost whose upper end, `most_lost` by its place, is within the
    margin, or if there is none of the first that seems to be. None if none seems to be.
    """
    seems = [place for place, loss in enumerate(lost) if loss <= margin]
    for place in seems:
        most = most_lost(place)
        if most is not None and most <= margin:
            return place, True
    return (seems[0], False) if seems else None


def optimism(
    metrics_M: Floats, samples_MR: Floats, unpruned_R: Floats, wider_M: Floats, loss: float
) -> float:
    """How much higher the metric of the model that `cheapest_within` takes is than on other rows.

    Metrics are those on all selection rows and on samples of them. The upper end of what a model
    loses is wider by `wider_M`; the margin is a share of the unpruned metric.
    """
    gains = []
    for sample_M, unpruned in zip(samples_MR.T, unpruned_R, strict=True):
        cheaper_M = np.maximum.accumulate(np.concatenate([[-np.inf], sample_M[:-1]]))
        front = np.flatnonzero(sample_M > cheaper_M)
        lost = unpruned - sample_M[front]
        most = lost + wider_M[front]
        if chosen := cheapest_within(lost.tolist(), most.__getitem__, loss * unpruned):
            place = front[chosen[0]]
            gains.append(sample_M[place] - metrics_M[place])
    return float(np.sqrt(2) * np.mean(gains)) if gains else 0.0


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A model of the front, and what it is the answer to."""

    reasons: tuple[str, ...]
    trial: FinishedTrial
    expected: float | None = None
    """Metric to expect on other rows, for the cheapest within 1%: that on the selection split less
    the luck of being chosen. None where answers are not known."""


def recommendations(view: ParetoView) -> list[Recommendation]:
    """The knee and the cheapest models within 1% and 3% of the unpruned metric, by falling cost.

    A model is within a loss if the upper end of the paired 95% interval of what it loses is; if
    none is, the cheapest that seems to be is named, with the rows that would tell. Where answers
    are not known the metrics alone decide. A model that answers several questions stands there
    once.
    """
    wanted: dict[int, list[str]] = {}
    expected: dict[int, float | None] = {}
    metric = view.run.unpruned.metric
    for loss in (0.01, 0.03) if metric > 0 else ():
        if chosen := _within(view, loss):
            trial, reason = chosen
            wanted.setdefault(trial.number, []).append(reason)
            if loss == _EXPECTED:
                expected[trial.number] = _expected(view, trial)
    if (bend := knee([trial.result for trial in view.front])) is not None:
        wanted.setdefault(view.front[bend].number, []).append("knee")
    return [
        Recommendation(
            reasons=tuple(wanted[trial.number]), trial=trial, expected=expected.get(trial.number)
        )
        for trial in reversed(view.front)
        if trial.number in wanted
    ]


def expected_of(view: ParetoView) -> Recommendation | None:
    """The recommendation whose metric on other rows is told; None where answers are not known."""
    return next((row for row in recommendations(view) if row.expected is not None), None)


def _within(view: ParetoView, loss: float) -> tuple[FinishedTrial, str] | None:
    """The cheapest model of the front that loses at most this share, and how sure that is."""
    margin, words = loss * view.run.unpruned.metric, f"within {loss:.0%}"
    lost = [view.run.unpruned.metric - trial.result.metric for trial in view.front]
    comparison = view.paired

    def most_lost(place: int) -> float | None:
        return comparison.most_lost(view.front[place]) if comparison else lost[place]

    chosen = cheapest_within(lost, most_lost, margin)
    if chosen is None:
        return None
    trial, sure = view.front[chosen[0]], chosen[1]
    # Where no row differs a bootstrap is sure of anything, so there must be the rows of which all
    # alike would do: the bound of `members.at_least` in closed form, without its scipy.
    fewest = math.ceil(math.log(0.05) / math.log1p(-loss))
    if comparison is None or (sure and comparison.rows >= fewest):
        return trial, f"cheapest {words}"
    rows = comparison.rows_to_decide(trial, margin)
    hint = f" ({max(rows, fewest):,} rows would tell)" if rows is not None else ""
    return trial, f"may be {words}{hint}"


def _expected(view: ParetoView, chosen: FinishedTrial) -> float | None:
    comparison = view.paired
    if comparison is None:
        return None
    models = sorted((*view.front, *view.near), key=lambda t: (t.result.cost, -t.result.metric))
    read = [comparison.samples(number) for number in (None, *(t.number for t in models))]
    samples = [sample for sample in read if sample is not None]
    if len(samples) < len(read):
        return None
    metrics_M = np.array([trial.result.metric for trial in models])
    lost_M = view.run.unpruned.metric - metrics_M
    most_M = np.array([comparison.most_lost(trial) for trial in models])
    lucky = optimism(metrics_M, np.stack(samples[1:]), samples[0], most_M - lost_M, _EXPECTED)
    return chosen.result.metric - lucky


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

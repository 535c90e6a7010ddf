"""Recommend a model of a front in a sentence; the knee, and the cheapest that lose little."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.metric import Floats
from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.results import Measured, TrialResult
from reports.pareto import ParetoView, percent

_LOSSES = (0.01, 0.03)
_SAVES = 0.5  # a model that costs more of the unpruned one is not worth the change
_EXPECTED = 0.01  # the loss within which the chosen model's metric is corrected for the choice


def recommended(run: RunRecord) -> FinishedTrial | None:
    """The model of the front to take: the cheapest that seems to lose at most 1% of the unpruned
    metric on the selection split, if it costs at most half; else at most 3%, likewise. Else the
    cheapest of 1% or 3% at any cost, the knee, or the best. None if the front is empty."""
    metric = run.unpruned.metric
    little = [
        trial
        for loss in (_LOSSES if metric > 0 else ())
        for trial in [t for t in run.front if _at_most(metric - t.result.metric, loss * metric)][:1]
    ]
    small = [trial for trial in little if trial.result.ratio <= _SAVES]
    bend = knee([trial.result for trial in run.front])
    knees = [] if bend is None else [run.front[bend]]
    return next(iter((*small, *little, *knees, *run.front[-1:])), None)


def answer(view: ParetoView) -> str:
    """The recommended model and what it keeps, in a sentence; or why there is none."""
    name, trial = view.run.unpruned.cost_name, recommended(view.run)
    missed = [t for t in view.outside if t.result.missed or t.result.violation > 0]
    if trial is None and view.outside and not missed:
        return "All trials that could be on the front are damaged; launch again to repeat them."
    if trial is None and missed:
        name = missed[0].result.budget_name
        inside = sum(trial.result.violation <= 0 for trial in missed)
        if inside:
            return f"No trial has met all aims yet; {inside} finished inside their {name} budget."
        return f"No trial has met its {name} budget yet; {len(missed)} finished outside it."
    if trial is None:
        return "No trial has finished yet."
    result, metric = trial.result, view.run.unpruned.metric
    cost = f"unpruned student's {name}" if view.run.unpruned.student_is_new else name
    at, keeps = f"{percent(result.ratio)} of the {cost}", _kept(view, result)
    if metric > 0 and not _at_most(metric - result.metric, max(_LOSSES) * metric):
        return f"No model loses at most 3%; trial {trial.number}, at {at}, {keeps}."
    return f"Take trial {trial.number}: at {at} it {keeps}."


def certainty(view: ParetoView) -> str:
    """Sentence on the largest loss of the recommended model by its selection rows, 1, 3, 5 or 10%,
    and on how many rows would show 1%. Empty if answers are unknown."""
    trial, comparison, metric = recommended(view.run), view.paired, view.run.unpruned.metric
    if trial is None or comparison is None or metric <= 0:
        return ""
    most = comparison.most_lost(trial)
    if most is None:
        return ""
    provable = (loss for loss in (*_LOSSES, 0.05, 0.1) if comparison.rows >= _fewest_rows(loss))
    sure = [loss for loss in provable if _at_most(most, loss * metric)]
    words = f"95% sure to lose at most {sure[0]:.0%}" if sure else "not sure to lose at most 10%"
    rows = comparison.rows_to_decide(trial, _EXPECTED * metric)
    if sure[:1] == [_EXPECTED] or rows is None:
        return f"On {comparison.rows:,} selection rows it is {words}."
    needed = max(rows, _fewest_rows(_EXPECTED))
    return f"On {comparison.rows:,} selection rows it is {words}; {needed:,} would tell of 1%."


def _fewest_rows(loss: float) -> int:
    """Rows of which all alike would show a loss: where no row differs a bootstrap is sure of
    anything. It is the bound of `members.at_least` in closed form, without its scipy."""
    return math.ceil(math.log(0.05) / math.log1p(-loss))


def _at_most(loss: float, margin: float) -> bool:
    """Whether a loss is at most a margin, up to rounding."""
    return loss <= margin + 1e-9


def cheapest_within(
    lost: Sequence[float], most_lost: Callable[[int], float | None], margin: float
) -> tuple[int, bool] | None:
    """Index of the cheapest model, by rising cost, that loses at most a margin, and whether it
    surely does: by its upper end, `most_lost`, else by its loss. None if none seems to."""
    seems = [index for index, loss in enumerate(lost) if _at_most(loss, margin)]
    for index in seems:
        most = most_lost(index)
        if most is not None and _at_most(most, margin):
            return index, True
    return (seems[0], False) if seems else None


def optimism(
    metrics_M: Floats, samples_MR: Floats, unpruned_R: Floats, wider_M: Floats, loss: float
) -> float:
    """How much higher the metric of the model that `cheapest_within` takes is than on other rows,
    by metrics on all selection rows and on samples of them. `wider_M` is the width of what a model
    may lose beyond its loss, `loss` the margin as a share of the unpruned metric."""
    gains = []
    for sample_M, unpruned in zip(samples_MR.T, unpruned_R, strict=True):
        cheaper_M = np.maximum.accumulate(np.concatenate([[-np.inf], sample_M[:-1]]))
        front = np.flatnonzero(sample_M > cheaper_M)
        lost = unpruned - sample_M[front]
        most = lost + wider_M[front]
        if chosen := cheapest_within(lost.tolist(), most.__getitem__, loss * unpruned):
            index = front[chosen[0]]
            gains.append(sample_M[index] - metrics_M[index])
    return float(np.sqrt(2) * np.mean(gains)) if gains else 0.0


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A model of the front, and the reasons to look at it."""

    reasons: tuple[str, ...]
    trial: FinishedTrial
    expected: float | None = None
    """Metric to expect on other rows, for the cheapest within 1%: that on the selection split less
    the luck of being chosen. None where answers are not known."""


def recommendations(view: ParetoView) -> list[Recommendation]:
    """The `recommended` model; then the knee and the cheapest within 1% and 3%, by falling cost.
    They are so by the upper end of their paired 95% interval; if none is, the cheapest that seems
    to be is named, with the rows that would tell. Without answers the metrics decide."""
    first = recommended(view.run)
    wanted: dict[int, list[str]] = {} if first is None else {first.number: ["recommended"]}
    expected: dict[int, float | None] = {}
    metric = view.run.unpruned.metric
    for loss in _LOSSES if metric > 0 else ():
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
        for trial in sorted(reversed(view.front), key=lambda trial: trial is not first)
        if trial.number in wanted
    ]


def expected_of(view: ParetoView) -> Recommendation | None:
    """Recommendation with an expected metric on other rows; None if answers are unknown."""
    return next((row for row in recommendations(view) if row.expected is not None), None)


def _within(view: ParetoView, loss: float) -> tuple[FinishedTrial, str] | None:
    """Cheapest model of the front that loses at most this share, and how sure that is."""
    margin, words = loss * view.run.unpruned.metric, f"within {loss:.0%}"
    lost = [view.run.unpruned.metric - trial.result.metric for trial in view.front]
    comparison = view.paired

    def most_lost(index: int) -> float | None:
        return comparison.most_lost(view.front[index]) if comparison else lost[index]

    chosen = cheapest_within(lost, most_lost, margin)
    if chosen is None:
        return None
    trial, sure = view.front[chosen[0]], chosen[1]
    fewest = _fewest_rows(loss)
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
    """Place of the knee in a front by rising cost: the point furthest above the line that joins its
    ends, of equals the cheapest; None if there is none above (Satopaa et al. 2011, "Finding a
    Kneedle in a haystack"). Both axes are scaled to [0, 1], costs by logarithms if `wide`."""
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
    """Whether costs differ by more than ten times, so that a linear scale would crowd the cheap."""
    return min(costs, default=1) * 10 < max(costs, default=1) and min(costs) > 0


def _kept(view: ParetoView, result: TrialResult) -> str:
    unpruned, name = view.run.unpruned, view.run.metric_name
    whose = "the teacher's" if unpruned.student_is_new else "its"
    if unpruned.metric > 0 and unpruned.heldout_metric > 0:
        share = result.metric / unpruned.metric
        heldout = result.heldout_metric / unpruned.heldout_metric
        return f"keeps {heldout:.1%} of {whose} {name} held out (selection split: {share:.1%})"
    other = "the teacher" if unpruned.student_is_new else "the unpruned one"
    # Matthews correlation may be zero or less: a share of it would say nothing.
    return (
        f"has {name} {result.heldout_metric:.3f} held out where {other} has "
        f"{unpruned.heldout_metric:.3f} (selection split: {result.metric:.3f} and "
        f"{unpruned.metric:.3f})"
    )

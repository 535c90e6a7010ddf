"""The Pareto front of the objective against the cost: in numbers, and in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.runs.records import FinishedTrial, RunRecord, TrialRecord
from orchestrator.runs.results import TrialResult
from reports.paired import Paired, paired


@dataclass(frozen=True, kw_only=True)
class ParetoView:
    """The finished trials of a run, sorted by what they are to its front."""

    run: RunRecord
    front: tuple[FinishedTrial, ...]
    """By rising cost, and so by rising worth."""
    near: tuple[FinishedTrial, ...]
    """Off the front, but no cheaper model of it is surely as good: the rows do not tell them
    apart."""
    dominated: tuple[FinishedTrial, ...]
    """Inside their budget, but a cheaper model of the front is surely as good: see `Paired`."""
    outside: tuple[FinishedTrial, ...]
    """Outside their budget or the study's aims; they are on no front."""
    paired: Paired | None
    """What the same rows say of two models; None where answers are not known."""


def pareto_view(run: RunRecord) -> ParetoView:
    """Sort the finished trials of a run."""
    front, comparison = run.front, paired(run)
    numbers = {trial.number for trial in front}
    off = [trial for trial in run.finished if trial.feasible and trial.number not in numbers]
    matched = comparison.surely_matched(front, off) if comparison else {t.number for t in off}
    return ParetoView(
        run=run,
        front=tuple(front),
        near=tuple(trial for trial in off if trial.number not in matched),
        dominated=tuple(trial for trial in off if trial.number in matched),
        outside=tuple(t for t in run.finished if not t.feasible),
        paired=comparison,
    )


def state_text(trial: TrialRecord) -> str:
    """What became of a trial, in the page's words."""
    if trial.result is None:
        return trial.state
    if trial.result.violation > 0:
        return "outside budget"
    if trial.damage:
        return "damaged"
    return "finished" if trial.feasible else "misses an aim"


def answer(view: ParetoView) -> str:
    """One sentence: what is kept at half the cost, or what there is instead.

    Where all of a front lies below half, as bytes of few bits do, that says little: there it is the
    cheapest model that loses no more than 1%.
    """
    unpruned = view.run.unpruned
    name = unpruned.cost_name
    if not view.front and view.outside:
        inside = sum(trial.result.violation <= 0 for trial in view.outside)
        if inside:
            return f"No trial has met all aims yet; {inside} finished inside their {name} budget."
        return f"No trial has met its {name} budget yet; {len(view.outside)} finished outside it."
    if not view.front:
        return "No trial has finished yet."
    cost = f"unpruned student's {name}" if unpruned.student_is_new else name
    half = [trial for trial in view.front if trial.result.ratio <= 0.5]
    if half:
        best = half[-1].result
        good = [t.result for t in half if t.result.metric >= 0.99 * unpruned.metric > 0]
        if good and len(half) == len(view.front):
            best = good[0]
        return f"At {percent(best.ratio)} of the {cost} the model {_kept(view, best)}."
    smallest = view.front[0].result
    return (
        f"No model on the front has at most half the {cost} yet; "
        f"the smallest, at {percent(smallest.ratio)}, {_kept(view, smallest)}."
    )


def percent(share: float) -> str:
    """A share as a whole percentage, or with one decimal below 10%."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def knob_texts(knobs: Mapping[str, Any]) -> list[str]:
    """The knobs of a trial, numbers to four digits."""
    return [
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in knobs.items()
    ]


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

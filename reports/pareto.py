"""The Pareto front of the objective against the cost, and what its rows can tell apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from objectives.measures.bootstrap import RESAMPLES, resampled_together
from objectives.measures.thresholds import cross_fitted
from objectives.metric import Labels, Logits, Metric
from orchestrator.runs.answers import JudgedRows, read_answers, read_rows
from orchestrator.runs.records import FinishedTrial, RunRecord, TrialRecord

_LEVEL = 0.95
_SURE = NormalDist().inv_cdf((1 + _LEVEL) / 2)
"""Standard deviations on either side of a 95% interval."""


@dataclass(frozen=True, eq=False)
class Paired:
    """The models of one run on its selection rows."""

    run: RunRecord
    judged: JudgedRows
    _known: dict[int | None, NDArray[np.float64]] = field(default_factory=dict)
    """Samples of the metric by trial; NaN for models whose answers are gone."""

    def surely_matched(
        self, front: Sequence[FinishedTrial], others: Sequence[FinishedTrial]
    ) -> set[int]:
        """Numbers of the trials that a model of the front, which costs no more, is surely at least
        as good as: on all rows, with 95% confidence.

        The level is Bonferroni's for as many comparisons as the run has finished trials. Where
        answers are gone the metrics alone decide.
        """
        sure = NormalDist().inv_cdf(1 - (1 - _LEVEL) / max(1, len(self.run.finished)))
        matched, unsure = set[int](), []
        costs, metrics, widths = np.array([_numbers(member) for member in front]).reshape(-1, 3).T
        for trial in others:
            cost, metric, width = _numbers(trial)
            rivals = np.flatnonzero((costs <= cost) & (metrics >= metric))
            gains = metrics[rivals] - metric
            if (gains >= sure * (widths[rivals] + width) / (2 * _SURE)).any():
                matched.add(trial.number)  # no difference spreads more: nothing need be read
            else:
                unsure.append((trial.number, rivals, gains))
        numbers = [member.number for member in front]
        self._read([*numbers, *(number for number, _, _ in unsure)])
        samples = np.array([self._known[number] for number in numbers])
        for number, rivals, gains in unsure:
            spreads = np.std(samples[rivals] - self._known[number], axis=1)
            if not (gains < sure * spreads).all():
                matched.add(number)
        return matched

    def most_lost(self, trial: FinishedTrial) -> float | None:
        """The upper end of the 95% interval of what a model loses of the unpruned one's metric."""
        unpruned, pruned = self.samples(None), self.samples(trial.number)
        if unpruned is None or pruned is None:
            return None
        lost = self.run.unpruned.metric - trial.result.metric
        return lost + _SURE * float(np.std(unpruned - pruned))

    @property
    def rows(self) -> int:
        """Number of selection rows."""
        return len(self.judged.labels["select"])

    def rows_to_decide(self, trial: FinishedTrial, margin: float) -> int | None:
        """How many selection rows would show that a model loses at most `margin`, if it loses what
        it seems to; None where it seems to lose more."""
        most, lost = self.most_lost(trial), self.run.unpruned.metric - trial.result.metric
        if most is None or lost >= margin:
            return None
        return int(np.ceil(self.rows * ((most - lost) / (margin - lost)) ** 2))

    def samples(self, number: int | None) -> NDArray[np.float64] | None:
        """The metric of a trial's model, or of the unpruned one, on each sample of the bootstrap;
        those of all are of equal rows. None if answers are gone."""
        self._read([number])
        return None if np.isnan(self._known[number]).all() else self._known[number]

    def _read(self, numbers: Sequence[int | None]) -> None:
        """Know the samples of these models, which are drawn once for all of them."""
        predictions: dict[int | None, Labels] = {}
        for number in set(numbers) - self._known.keys():
            answers = self.judged.unpruned if number is None else read_answers(self.run, number)
            if answers is None:
                self._known[number] = np.full(RESAMPLES, np.nan)
            else:
                predictions[number] = self._said(answers["select"])
        if predictions:
            classes = max(self.judged.unpruned["select"].shape[-1], 2)
            labels = self.judged.labels["select"]
            together = resampled_together(self._metric, labels, [*predictions.values()], classes)
            self._known.update(zip(predictions, together, strict=True))

    @property
    def _metric(self) -> Metric:
        return cast("Metric", self.run.definition["task.metric"])

    def _said(self, logits: Logits) -> Labels:
        labels = self.judged.labels["select"]
        if labels.ndim == 2:
            if "task.thresholds" in self.run.definition:
                logits = cross_fitted(self._metric, labels, logits)
            return (logits > 0).astype(labels.dtype)
        return logits.argmax(-1) if logits.shape[-1] > 1 else logits[:, 0]


def _numbers(trial: FinishedTrial) -> tuple[float, float, float]:
    """Cost, metric and the width of its interval."""
    low, high = trial.result.interval
    return trial.result.cost, trial.result.metric, high - low


def paired(run: RunRecord) -> Paired | None:
    """The comparisons of a run; None where it compares divergences or kept no answers."""
    judged = read_rows(run)
    if judged is None or run.unpruned.objective != "metric":
        return None
    return Paired(run, judged)


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
    """Comparisons on the same rows; None where answers are not known."""


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
    """State of a trial in the page's words."""
    if trial.result is None:
        return trial.state
    if trial.result.violation > 0:
        return "outside budget"
    if trial.damage:
        return "damaged"
    return "finished" if trial.feasible else "misses an aim"


def percent(share: float) -> str:
    """A share as a whole percentage, or with one decimal below 10%."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def knob_texts(knobs: Mapping[str, Any]) -> list[str]:
    """The knobs of a trial, numbers to four digits."""
    return [
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in knobs.items()
    ]

"""Paired comparisons of a run's models: what the same selection rows say of two of them.

Of one row, two models' answers go together, so the difference of their metrics is far surer than
either. All is reckoned from the answers that trials kept; a run of an earlier version has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import cast

import numpy as np
from numpy.typing import NDArray

from objectives.measures.bootstrap import RESAMPLES, resampled_together
from objectives.measures.thresholds import cross_fitted
from objectives.metric import Labels, Logits, Metric
from orchestrator.runs.answers import JudgedRows, read_answers, read_rows
from orchestrator.runs.records import FinishedTrial, RunRecord

_LEVEL = 0.95
_SURE = NormalDist().inv_cdf((1 + _LEVEL) / 2)
"""Standard deviations on either side of a 95% interval."""


@dataclass(frozen=True, eq=False)
class Paired:
    """The models of one run on its selection rows."""

    run: RunRecord
    judged: JudgedRows
    _known: dict[int | None, NDArray[np.float64]] = field(default_factory=dict)
    """Of models whose answers are gone it is NaN."""

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
        costs, metrics, widths = np.array([_numbers(one) for one in front]).reshape(-1, 3).T
        for trial in others:
            cost, metric, width = _numbers(trial)
            rivals = np.flatnonzero((costs <= cost) & (metrics >= metric))
            gains = metrics[rivals] - metric
            if (gains >= sure * (widths[rivals] + width) / (2 * _SURE)).any():
                matched.add(trial.number)  # no difference spreads more: nothing need be read
            else:
                unsure.append((trial.number, rivals, gains))
        numbers = [one.number for one in front]
        self._read([*numbers, *(number for number, _, _ in unsure)])
        samples = np.array([self._known[number] for number in numbers])
        for number, rivals, gains in unsure:
            spreads = np.std(samples[rivals] - self._known[number], axis=1)
            if not (gains < sure * spreads).all():
                matched.add(number)
        return matched

    def most_lost(self, trial: FinishedTrial) -> float | None:
        """The upper end of the 95% interval of what a model loses of the unpruned one's metric."""
        spread = self._spread(None, trial.number)
        if spread is None:
            return None
        lost = self.run.unpruned.metric - trial.result.metric
        return lost + _SURE * spread

    @property
    def rows(self) -> int:
        """Of the selection split."""
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
        said: dict[int | None, Labels] = {}
        for number in set(numbers) - self._known.keys():
            found = self.judged.unpruned if number is None else read_answers(self.run, number)
            if found is None:
                self._known[number] = np.full(RESAMPLES, np.nan)
            else:
                said[number] = self._said(found["select"])
        if said:
            classes = max(self.judged.unpruned["select"].shape[-1], 2)
            labels = self.judged.labels["select"]
            together = resampled_together(self._metric, labels, [*said.values()], classes)
            self._known.update(zip(said, together, strict=True))

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

    def _spread(self, one: int | None, other: int | None) -> float | None:
        """The standard deviation of the difference of two metrics; None if answers are gone."""
        first, second = self.samples(one), self.samples(other)
        return None if first is None or second is None else float(np.std(first - second))


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

"""Paired comparisons of a run's models: what the same selection rows say of two of them.

Of one row, two models' answers go together, so the difference of their metrics is far surer than
either. All is reckoned from the answers that trials kept; a run of an earlier version has none.
"""

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from objectives.measures.bootstrap import resampled_metrics
from objectives.measures.thresholds import cross_fitted
from objectives.metric import Metric
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

    def surely_as_good(self, one: FinishedTrial, other: FinishedTrial) -> bool:
        """Whether `one` is at least as good as `other` on all rows, with 95% confidence.

        The level is Bonferroni's for as many comparisons as the run has finished trials. True where
        answers are gone: then the metrics alone decide.
        """
        sure = NormalDist().inv_cdf(1 - (1 - _LEVEL) / max(1, len(self.run.finished)))
        gain = one.result.metric - other.result.metric
        apart = sum(high - low for low, high in (one.result.interval, other.result.interval))
        if gain >= sure * apart / (2 * _SURE):  # no difference spreads more: nothing need be read
            return True
        spread = self._spread(one.number, other.number)
        return spread is None or gain >= sure * spread

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
        if number not in self._known:
            logits = self.judged.unpruned
            if number is not None:
                [trial] = [one for one in self.run.finished if one.number == number]
                found = read_answers(self.run, trial)
                if found is None:
                    return None
                logits = found
            own, labels = logits["select"], self.judged.labels["select"]
            said = own.argmax(-1) if own.shape[-1] > 1 else own[:, 0]
            metric = cast("Metric", self.run.definition["task.metric"])
            if labels.ndim == 2:
                if "task.thresholds" in self.run.definition:
                    own = cross_fitted(metric, labels, own)
                said = (own > 0).astype(labels.dtype)
            self._known[number] = resampled_metrics(metric, labels, said, max(own.shape[-1], 2))
        return self._known[number]

    def _spread(self, one: int | None, other: int | None) -> float | None:
        """The standard deviation of the difference of two metrics; None if answers are gone."""
        samples = [self.samples(number) for number in (one, other)]
        if any(own is None for own in samples):
            return None
        return float(np.std(cast("Any", samples[0]) - samples[1]))


def paired(run: RunRecord) -> Paired | None:
    """The comparisons of a run; None where it compares divergences or kept no answers."""
    judged = read_rows(run)
    if judged is None or run.unpruned.objective != "metric":
        return None
    return Paired(run, judged)

"""Pareto front of objective against cost, and which differences its rows can show."""

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
_SURE = NormalDist().inv_cdf((1 + _LEVEL) / 2)  # standard deviations on a side of a 95% interval


@dataclass(frozen=True, eq=False)
class Paired:
    """Paired comparisons of a run's models on its selection rows."""

    run: RunRecord
    judged: JudgedRows
    # Samples of the metric by trial; NaN for models whose answers are gone.
    _known: dict[int | None, NDArray[np.float64]] = field(default_factory=dict)

    def surely_matched(
        self, front: Sequence[FinishedTrial], others: Sequence[FinishedTrial]
    ) -> set[int]:
        """Numbers of the trials that are surely no better than a front's model of at most their
        cost: on all rows, at 95% by Bonferroni over the run's finished trials. Where answers are
        gone the metrics alone decide."""
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
        """Upper end of the 95% interval of a model's loss in metric against the unpruned one."""
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
        """Selection rows that would show a loss of at most `margin`; None if it loses more."""
        most, lost = self.most_lost(trial), self.run.unpruned.metric - trial.result.metric
        if most is None or margin - lost < 1e-9:  # less apart is rounding
            return None
        return int(np.ceil(self.rows * ((most - lost) / (margin - lost)) ** 2))

    def samples(self, number: int | None) -> NDArray[np.float64] | None:
        """Metric of a model on each bootstrap sample, the same for all; None without answers."""
        self._read([number])
        return None if np.isnan(self._known[number]).all() else self._known[number]

    def _read(self, numbers: Sequence[int | None]) -> None:
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
    """Comparisons of a run; None if it compares divergences or kept no answers."""
    judged = read_rows(run)
    if judged is None or run.unpruned.objective != "metric":
        return None
    return Paired(run, judged)


@dataclass(frozen=True, kw_only=True)
class ParetoView:
    """Finished trials of a run, sorted by their relation to its front."""

    run: RunRecord
    front: tuple[FinishedTrial, ...]  # by rising cost and so by rising objective
    near: tuple[FinishedTrial, ...]  # off the front, but no cheaper model of it surely matches them
    dominated: tuple[FinishedTrial, ...]  # those that a cheaper model of the front surely matches
    outside: tuple[FinishedTrial, ...]  # outside their budget or the study's aims, or damaged
    paired: Paired | None  # None if answers are unknown


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
    """Format a share as a percentage; below 10% with a decimal, below 0.1% with two digits."""
    if 0 < share < 0.001:
        return f"{100 * share:.2g}%"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def knob_texts(knobs: Mapping[str, Any]) -> list[str]:
    """Format the knobs of a trial, numbers to four digits."""
    return [
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in knobs.items()
    ]

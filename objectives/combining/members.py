"""Members of cascades, and the rows that judge their answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from objectives.measures.bootstrap import resampled_metrics
from objectives.metric import Labels, Logits, Metric, metric_value

Array = NDArray[Any]
Confidence = Literal["probability", "margin", "entropy"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
CONFIDENCE = 0.95
"""Confidence of every statement about unseen rows."""


@dataclass(frozen=True)
class CascadeStage:
    """Model of a cascade, with the threshold below which it defers to the next one."""

    number: int | None
    """Number of its trial; None is the unpruned model."""
    engine: str = ""
    """Engine that answers, if members have several."""
    confidence: Confidence = "probability"
    """Highest probability, its distance from the second, or minus the entropy."""
    temperature: float = 1.0
    """Divisor of its logits."""
    threshold: float = -math.inf
    """Confidence below which a row is deferred; the last stage defers none."""


@dataclass(frozen=True, eq=False)
class Member:
    """Finished model: its answers on the judging rows, and the cost of an answer."""

    number: int | None
    """Number of its trial; None is the unpruned model."""
    cost: float
    """Mean cost of a row, in the unit that is compared."""
    logits: Mapping[str, Logits]
    """Logits of "select" and "heldout"."""
    engine: str = ""
    """Engine that answers, if members have several."""
    rest: tuple[CascadeStage, ...] = ()
    """Further models of a cascade; see `stages`."""
    costs: Mapping[str, Array] | None = None
    """Costs (rows,) by role of a cascade; None for a single model, whose rows all cost alike."""
    deferred: Mapping[str, float] | None = None
    """Share of the rows, by role, that the first model of a cascade defers."""

    @property
    def stages(self) -> tuple[CascadeStage, ...]:
        """Models in the order in which they are asked."""
        return self.rest or (CascadeStage(self.number, self.engine),)

    def costs_of(self, role: str) -> Array:
        """Cost of each row (rows,) of a role."""
        return self.costs[role] if self.costs else np.full(len(self.logits[role]), self.cost)

    def judged_by(self, which: NDArray[np.bool_]) -> "Member":
        """The member on a subset of the selection rows."""
        logits = {**self.logits, "select": self.logits["select"][which]}
        if self.costs is None:
            return replace(self, logits=logits)
        costs = {**self.costs, "select": self.costs["select"][which]}
        return replace(self, logits=logits, costs=costs, cost=float(costs["select"].mean()))


@dataclass(frozen=True, eq=False)
class GateRows:
    """Judging rows: their labels, and the unpruned model's answers."""

    metric: Metric
    labels: Mapping[str, Labels]
    """(rows,) of "select" and "heldout", classes."""
    original: Mapping[str, Labels]
    """(rows,): classes that the unpruned model predicts."""
    classes: int

    def value(self, role: str, said: Labels) -> float:
        """Metric of predicted classes (rows,)."""
        return metric_value(self.metric, self.labels[role], said, classes=self.classes)

    def judged_by(self, which: NDArray[np.bool_]) -> "GateRows":
        """The rows with a subset of the selection rows."""
        labels, original = (
            {**of, "select": of["select"][which]} for of in (self.labels, self.original)
        )
        return replace(self, labels=labels, original=original)

    def surely(self, role: str, said: Labels, kept: float) -> float:
        """Lower bound, at 95% confidence by a paired bootstrap over the rows, of how far the metric
        of these classes is above `kept` times the unpruned model's."""
        achieved, original = (
            resampled_metrics(self.metric, self.labels[role], answers, self.classes)
            for answers in (said, self.original[role])
        )
        return float(np.quantile(achieved - kept * original, 1 - CONFIDENCE))

    def share_that_breaks(self, least: float, kept: float) -> float:
        """Smallest share of the rows whose answers, changed, take the metric below `least`, or, if
        `kept` is above 0, below that share of the unpruned model's.

        They are changed from perfect answers, or from the unpruned model's: of each class to the
        rarest, and of that to the most frequent. The most harmful of these changes counts.
        """
        labels = self.labels["select"]
        answers = self.original["select"] if kept else labels
        value, counts = self.value("select", answers), np.bincount(labels, minlength=self.classes)
        rarest, *others = np.argsort(np.where(counts, counts, np.inf), kind="stable").tolist()
        frequent = int(counts.argmax())
        harm = 0.0
        for label in np.flatnonzero(counts).tolist():
            if len(right := np.flatnonzero((labels == label) & (answers == label))):
                changed = answers.copy()
                changed[right[0]] = next(n for n in (rarest, frequent, *others) if n != label)
                harm = max(harm, value - self.value("select", changed))
        room = value - (kept * value if kept else least)
        return min(1.0, max(0.0, room) / (harm * len(labels))) if harm > 0 else 0.0

    def agreement(self, role: str, said: Labels) -> float:
        """Share of the rows on which these classes are the unpruned model's."""
        return float((said == self.original[role]).mean())


def probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """Softmax of logits (..., C) over a temperature > 0."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def at_least(right: Array | int, rows: int) -> NDArray[np.float64]:
    """Lower bound, at 95% confidence, of the share of right rows (Clopper and Pearson 1934)."""
    from scipy.stats import beta  # half a second, which a page need not wait for

    right = np.asarray(right)
    with np.errstate(invalid="ignore"):
        bound = beta.ppf(1 - CONFIDENCE, right, rows - right + 1)
    return np.where(right > 0, bound, 0.0)


def enough(share: float, rows: int) -> int | None:
    """Fewest right rows for which `at_least` returns this share; None if all would not do."""
    bounds = at_least(np.arange(rows + 1), rows)
    index = int(np.searchsorted(bounds, share))
    return index if index <= rows else None

"""The parts that cascades are made of, and how their answers are judged."""

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
    """A model of a cascade, and the rows that it defers to the next one."""

    number: int | None
    """Number of its trial; None is the unpruned model."""
    engine: str = ""
    """In which it answers, where members have several."""
    confidence: Confidence = "probability"
    """How its sureness is told: its highest probability, how far that is above the second, or minus
    the entropy."""
    temperature: float = 1.0
    """That its logits are divided by."""
    threshold: float = -math.inf
    """A row of less confidence is deferred; the last stage defers none."""


@dataclass(frozen=True, eq=False)
class Member:
    """A finished model: its answers on the rows that judge, and what one answer costs."""

    number: int | None
    """Number of its trial; None is the unpruned model."""
    cost: float
    """Mean cost of a row, in the unit that is compared."""
    logits: Mapping[str, Logits]
    """Logits of "select" and "heldout"."""
    engine: str = ""
    """In which it answers, where members have several."""
    rest: tuple[CascadeStage, ...] = ()
    """Of a cascade its models; see `stages`."""
    costs: Mapping[str, Array] | None = None
    """Of a cascade the cost of each row (rows,) of each role; of one model all cost the same."""
    deferred: Mapping[str, float] | None = None
    """Of a cascade the share of the rows of each role that its first model defers."""

    @property
    def stages(self) -> tuple[CascadeStage, ...]:
        """The models that answer, the first one first."""
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
    """The rows that judge: the labels, and the answers that agreement is with."""

    metric: Metric
    labels: Mapping[str, Labels]
    """(rows,) of "select" and "heldout", classes."""
    original: Mapping[str, Labels]
    """(rows,): the classes that the unpruned model gives."""
    classes: int

    def value(self, role: str, said: Labels) -> float:
        """The metric of these classes (rows,)."""
        return metric_value(self.metric, self.labels[role], said, classes=self.classes)

    def judged_by(self, which: NDArray[np.bool_]) -> "GateRows":
        """The rows with a subset of the selection rows."""
        labels, original = (
            {**of, "select": of["select"][which]} for of in (self.labels, self.original)
        )
        return replace(self, labels=labels, original=original)

    def surely(self, role: str, said: Labels, kept: float) -> float:
        """How far the metric of these classes is above `kept` times the unpruned model's, at least,
        at 95% confidence by a paired bootstrap over the rows."""
        achieved, original = (
            resampled_metrics(self.metric, self.labels[role], answers, self.classes)
            for answers in (said, self.original[role])
        )
        return float(np.quantile(achieved - kept * original, 1 - CONFIDENCE))

    def agreement(self, role: str, said: Labels) -> float:
        """The share of the rows on which they are the unpruned model's."""
        return float((said == self.original[role]).mean())


def probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """Softmax of logits (..., C) over a temperature > 0."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def at_least(right: Array | int, rows: int) -> NDArray[np.float64]:
    """Least share that is right among all rows of the kind, at 95% confidence.

    The one-sided bound of Clopper and Pearson (1934) for `right` of `rows` independent rows.
    """
    from scipy.stats import beta  # half a second, which a page need not wait for

    right = np.asarray(right)
    with np.errstate(invalid="ignore"):
        bound = beta.ppf(1 - CONFIDENCE, right, rows - right + 1)
    return np.where(right > 0, bound, 0.0)


def enough(share: float, rows: int) -> int | None:
    """Fewest rows that must be right for `at_least` to give this share; None if all would not
    do."""
    bounds = at_least(np.arange(rows + 1), rows)
    index = int(np.searchsorted(bounds, share))
    return index if index <= rows else None

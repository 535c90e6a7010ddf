"""A cascade of two models: a small one answers, and where it is unsure a large one is asked.

The small model's confidence in a row is its highest probability, its margin or its entropy; rows
below a threshold are deferred (Viola and Jones 2001; of classifiers of text Wang et al. 2022,
"Wisdom of committees"). It costs the small model always and the large one for the rows deferred.
All is computed from answers that are there: nothing is trained, no model is run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from objectives.combining.members import GateRows, Member, probabilities
from objectives.metric import Labels, Logits

Confidence = Literal["probability", "margin", "entropy"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Shares of the selection rows whose deferral `cascades` looks at."""


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Two models, when the second is asked, and what they are worth together."""

    small: int | None
    """The number of its trial; None is the unpruned model."""
    large: int | None
    """Trial of the model that answers where the small one is unsure; None is the unpruned model."""
    confidence: Confidence
    """How the small one's sureness is told: its highest probability, how far that is above the
    second, or minus the entropy."""
    temperature: float
    """That the small model's logits are divided by."""
    threshold: float
    """A row of less confidence is deferred."""
    deferred: float
    """Share of the selection rows that are."""
    heldout_deferred: float
    """Share of the held-out rows that are."""
    cost: float
    """Mean of a selection row, in the unit of the members' costs."""
    heldout_cost: float
    """Mean of a held-out row."""
    metric: float
    """The task's metric on the selection split."""
    heldout_metric: float
    """The task's metric on the held-out split."""
    agreement: float
    """Share of the selection rows on which it answers as the unpruned model does."""
    heldout_agreement: float
    """Share of the held-out rows."""
    engines: tuple[str, str] = ("", "")
    """In which the two answer, where members have several."""


def confidence_of(kind: Confidence, logits: Logits, temperature: float) -> NDArray[np.float64]:
    """How sure a model is of each row (rows,), from its logits (rows, C): the highest probability;
    how far it is above the second; or minus the entropy in nats."""
    shares = probabilities(logits, temperature)
    if kind == "entropy":
        return np.asarray((shares * np.log(np.maximum(shares, 1e-300))).sum(-1))
    two = np.partition(shares, -2, axis=-1)[:, -2:]
    return np.asarray(two[:, 1] if kind == "probability" else two[:, 1] - two[:, 0])


def temperature_of(logits: Logits, labels: Labels) -> float:
    """The temperature of the least negative log-likelihood (Guo et al. 2017), of those at equal
    steps from a twentieth to 20. Of rows that are all right there is none: it is 1."""
    rows = np.arange(len(labels))
    if (logits.argmax(-1) == labels).all():
        return 1.0

    def loss(temperature: float) -> float:
        shares = probabilities(logits, temperature)[rows, labels]
        return -float(np.log(np.maximum(shares, 1e-300)).mean())

    return float(min(np.geomspace(0.05, 20, 61), key=loss))


@dataclass(frozen=True, eq=False)
class CascadePair:
    """Two members, and the order in which the small one's rows are deferred."""

    small: Member
    large: Member
    rows: GateRows
    confidence: Confidence
    temperature: float

    @cached_property
    def sure(self) -> dict[str, NDArray[np.float64]]:
        """The small one's confidence in each row of a role."""
        return {
            role: confidence_of(self.confidence, logits, self.temperature)
            for role, logits in self.small.logits.items()
        }

    def at(self, threshold: float) -> Cascade:
        """The cascade that defers the rows of less confidence than this."""
        rows, roles = self.rows, ("select", "heldout")
        answers = {role: self.said(role, threshold) for role in roles}
        deferred = {role: float((self.sure[role] < threshold).mean()) for role in roles}
        return Cascade(
            small=self.small.number,
            large=self.large.number,
            confidence=self.confidence,
            temperature=self.temperature,
            threshold=threshold,
            deferred=deferred["select"],
            heldout_deferred=deferred["heldout"],
            cost=self.cost(deferred["select"]),
            heldout_cost=self.cost(deferred["heldout"]),
            metric=rows.value("select", answers["select"]),
            heldout_metric=rows.value("heldout", answers["heldout"]),
            agreement=rows.agreement("select", answers["select"]),
            heldout_agreement=rows.agreement("heldout", answers["heldout"]),
            engines=(self.small.engine, self.large.engine),
        )

    def said(self, role: str, threshold: float) -> Labels:
        """The class of each row (rows,)."""
        answers = (self.large.logits[role].argmax(-1), self.small.logits[role].argmax(-1))
        return np.asarray(np.where(self.sure[role] < threshold, *answers))

    def threshold(self, deferred: float) -> float:
        """The one that defers this share of the selection rows."""
        if deferred <= 0 or deferred >= 1:
            return float("inf" if deferred > 0 else "-inf")
        return float(np.quantile(self.sure["select"], deferred))

    def cost(self, deferred: float) -> float:
        """Mean of a row where this share is deferred."""
        return self.small.cost + deferred * self.large.cost

    def judged_by(self, which: NDArray[np.bool_]) -> "CascadePair":
        """The pair on a subset of the selection rows."""
        small, large = (
            replace(member, logits={**member.logits, "select": member.logits["select"][which]})
            for member in (self.small, self.large)
        )
        return replace(self, small=small, large=large, rows=self.rows.judged_by(which))

    def curve(self) -> "DeferralCurve":
        """Cascades that defer the 0, 1, ... least confident selection rows; equal confidences are
        deferred together."""
        sure = self.sure["select"]
        order = np.argsort(sure, kind="stable")
        ranked, original = sure[order], self.rows.original["select"][order]
        alike = [
            member.logits["select"].argmax(-1)[order] == original
            for member in (self.small, self.large)
        ]
        by_small, by_large = (np.concatenate([[0], np.cumsum(agrees)]) for agrees in alike)
        first = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
        deferred = np.flatnonzero(first)
        return DeferralCurve(
            thresholds=np.concatenate([[-np.inf], ranked[1:], [np.inf]])[first],
            costs=self.small.cost + deferred / len(ranked) * self.large.cost,
            agreed=(by_small[-1] - by_small + by_large)[first],
        )


@dataclass(frozen=True, eq=False)
class DeferralCurve:
    """Cascades of one pair by the rows that they defer, from none to all."""

    thresholds: NDArray[np.float64]
    costs: NDArray[np.float64]
    """Mean of a selection row."""
    agreed: NDArray[np.int64]
    """Selection rows on which the cascade answers as the unpruned model does."""


def pair_of(small: Member, large: Member, rows: GateRows) -> CascadePair:
    """With the confidence that tells best, on the selection split, where the two answer alike."""
    logits = small.logits["select"]
    temperature = temperature_of(logits, large.logits["select"].argmax(-1))
    alike = logits.argmax(-1) == large.logits["select"].argmax(-1)

    def told(kind: Confidence) -> float:
        """The mean share that is alike among the surest rows, over all numbers of them."""
        order = np.argsort(-confidence_of(kind, logits, temperature), kind="stable")
        return float((np.cumsum(alike[order]) / np.arange(1, len(order) + 1)).mean())

    return CascadePair(small, large, rows, max(CONFIDENCES, key=told), temperature)


def pairs_of(members: Sequence[Member], rows: GateRows) -> Iterator[CascadePair]:
    """All pairs of a cheaper and a costlier member that may be worth their cost."""
    for small in members:
        for large in members:
            if small.cost < large.cost:
                yield pair_of(small, large, rows)


def cascades(pairs: Iterable[CascadePair]) -> list[Cascade]:
    """Every pair, deferring each of `SHARES`."""
    return [pair.at(pair.threshold(share)) for pair in pairs for share in SHARES]


def front_of(found: Sequence[Cascade]) -> list[Cascade]:
    """Cascades on the Pareto front of cost and selection metric, by rising cost."""
    front: list[Cascade] = []
    for cascade in sorted(found, key=lambda one: (one.cost, -one.metric)):
        if not front or cascade.metric > front[-1].metric:
            front.append(cascade)
    return front

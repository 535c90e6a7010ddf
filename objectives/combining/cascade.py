"""Cascade of models: a small one answers, and defers the rows of which it is unsure to a larger
one.

The small model's confidence in a row is its highest probability, its margin or its entropy; rows
below a threshold are deferred (Viola and Jones 2001; of classifiers of text Wang et al. 2022,
"Wisdom of committees"). It costs the small model always and the large one for the rows deferred.
The large one may be a cascade itself, so that there are three.
All is computed from answers that are there: nothing is trained, no model is run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from objectives.combining.members import (
    CONFIDENCES,
    CascadeStage,
    Confidence,
    GateRows,
    Member,
    probabilities,
)
from objectives.metric import Labels, Logits

_Model = TypeVar("_Model")
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Shares of deferred selection rows that `cascades` tries."""
_SECOND = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Shares of the selection rows that the second of three models would defer if it answered all."""


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Models with their thresholds, and the scores of the whole."""

    stages: tuple[CascadeStage, ...]
    """Its models, the cheapest first; a single model defers nothing."""
    deferred: float
    """Share of the selection rows that the first model defers."""
    heldout_deferred: float
    """Share of the held-out rows that the first model defers."""
    cost: float
    """Mean cost of a selection row, in the unit of the members' costs."""
    heldout_cost: float
    """Mean cost of a held-out row."""
    metric: float
    """The task's metric on the selection split."""
    heldout_metric: float
    """The task's metric on the held-out split."""
    agreement: float
    """Share of the selection rows on which it answers as the unpruned model does."""
    heldout_agreement: float
    """Share of the held-out rows on which it answers as the unpruned model does."""


def confidence_of(kind: Confidence, logits: Logits, temperature: float) -> NDArray[np.float64]:
    """Confidence (rows,): highest probability, its distance from the second, or minus entropy."""
    shares = probabilities(logits, temperature)
    if kind == "entropy":
        return np.asarray((shares * np.log(np.maximum(shares, 1e-300))).sum(-1))
    two = np.partition(shares, -2, axis=-1)[:, -2:]
    return np.asarray(two[:, 1] if kind == "probability" else two[:, 1] - two[:, 0])


def temperature_of(logits: Logits, labels: Labels) -> float:
    """Temperature of the least log-loss (Guo et al. 2017); 1 if all rows are right."""
    rows = np.arange(len(labels))
    if (logits.argmax(-1) == labels).all():
        return 1.0

    def loss(temperature: float) -> float:
        shares = probabilities(logits, temperature)[rows, labels]
        return -float(np.log(np.maximum(shares, 1e-300)).mean())

    return float(min(np.geomspace(0.05, 20, 61), key=loss))


def judged(member: Member, rows: GateRows) -> Cascade:
    """Scores of a single model or of a cascade."""
    answers = {role: logits.argmax(-1) for role, logits in member.logits.items()}
    deferred = member.deferred or dict.fromkeys(answers, 0.0)
    return Cascade(
        stages=member.stages,
        deferred=deferred["select"],
        heldout_deferred=deferred["heldout"],
        cost=member.cost,
        heldout_cost=float(member.costs_of("heldout").mean()),
        metric=rows.value("select", answers["select"]),
        heldout_metric=rows.value("heldout", answers["heldout"]),
        agreement=rows.agreement("select", answers["select"]),
        heldout_agreement=rows.agreement("heldout", answers["heldout"]),
    )


@dataclass(frozen=True, eq=False)
class CascadePair:
    """Two members, and the confidence by which the small one's rows are deferred."""

    small: Member
    large: Member
    rows: GateRows
    confidence: Confidence
    temperature: float

    @cached_property
    def sure(self) -> dict[str, NDArray[np.float64]]:
        """Confidence of the small one in each row, by role."""
        return {
            role: confidence_of(self.confidence, logits, self.temperature)
            for role, logits in self.small.logits.items()
        }

    def at(self, threshold: float) -> Cascade:
        """Cascade that defers the rows below this confidence."""
        return judged(self.joined(threshold), self.rows)

    def joined(self, threshold: float) -> Member:
        """Cascade at a threshold as a member; the small model alone if no row is deferred."""
        small, large = self.small, self.large
        deferred = {role: sure < threshold for role, sure in self.sure.items()}
        if not deferred["select"].any():
            return small
        costs = {
            role: small.cost + np.where(rows, large.costs_of(role), 0.0)
            for role, rows in deferred.items()
        }
        first = CascadeStage(
            small.number, small.engine, self.confidence, self.temperature, threshold
        )
        return Member(
            number=small.number,
            cost=float(costs["select"].mean()),
            logits={
                role: np.where(rows[:, None], large.logits[role], small.logits[role])
                for role, rows in deferred.items()
            },
            engine=small.engine,
            rest=(first, *large.stages),
            costs=costs,
            deferred={role: float(rows.mean()) for role, rows in deferred.items()},
        )

    def said(self, role: str, threshold: float) -> Labels:
        """Predicted class of each row (rows,)."""
        answers = (self.large.logits[role].argmax(-1), self.small.logits[role].argmax(-1))
        return np.asarray(np.where(self.sure[role] < threshold, *answers))

    def threshold(self, deferred: float) -> float:
        """Threshold that defers this share of the selection rows."""
        if deferred <= 0 or deferred >= 1:
            return float("inf" if deferred > 0 else "-inf")
        return float(np.quantile(self.sure["select"], deferred))

    def judged_by(self, which: NDArray[np.bool_]) -> "CascadePair":
        """The pair on a subset of the selection rows."""
        small, large = (member.judged_by(which) for member in (self.small, self.large))
        return replace(self, small=small, large=large, rows=self.rows.judged_by(which))

    def curve(self) -> "DeferralCurve":
        """Cascades that defer the 0, 1, ... least confident selection rows, ties together."""
        sure = self.sure["select"]
        order = np.argsort(sure, kind="stable")
        ranked, original = sure[order], self.rows.original["select"][order]
        alike = [
            member.logits["select"].argmax(-1)[order] == original
            for member in (self.small, self.large)
        ]
        by_small, by_large = (np.concatenate([[0], np.cumsum(agrees)]) for agrees in alike)
        costs = np.concatenate([[0], np.cumsum(self.large.costs_of("select")[order])])
        first = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
        return DeferralCurve(
            thresholds=np.concatenate([[-np.inf], ranked[1:], [np.inf]])[first],
            costs=(self.small.cost + costs / len(ranked))[first],
            agreed=(by_small[-1] - by_small + by_large)[first],
        )


class DeferralCurve(NamedTuple):
    """Cascades of one pair by the rows that they defer, from none to all."""

    thresholds: NDArray[np.float64]
    costs: NDArray[np.float64]
    """Mean cost of a selection row."""
    agreed: NDArray[np.int64]
    """Selection rows on which the cascade answers as the unpruned model does."""


def pair_of(small: Member, large: Member, rows: GateRows) -> CascadePair:
    """Pair two members by the confidence that best predicts on which selection rows they agree."""
    logits, wanted = small.logits["select"], large.logits["select"].argmax(-1)
    temperature, alike = temperature_of(logits, wanted), logits.argmax(-1) == wanted

    def agreement(kind: Confidence) -> float:
        """Mean agreement of the two among the n surest rows, over all n."""
        order = np.argsort(-confidence_of(kind, logits, temperature), kind="stable")
        return float((np.cumsum(alike[order]) / np.arange(1, len(order) + 1)).mean())

    return CascadePair(small, large, rows, max(CONFIDENCES, key=agreement), temperature)


def spread(models: Sequence[_Model], most: int) -> list[_Model]:
    """Take at most this many models, evenly spaced, including the first and the last."""
    indices = np.linspace(0, len(models) - 1, min(len(models), most))
    return [models[round(index)] for index in indices]


def pairs_of(members: Sequence[Member], rows: GateRows) -> Iterator[CascadePair]:
    """All pairs of a cheaper and a costlier member that may pay."""
    for small in members:
        for large in members:
            if small.cost < large.cost:
                yield pair_of(small, large, rows)


def threefold(
    pairs: Sequence[CascadePair], which: NDArray[np.bool_] | None = None
) -> Iterator[CascadePair]:
    """Cascades of three models, of which the second defers each of `_SECOND` of the rows."""
    for second in pairs:
        part = second if which is None else second.judged_by(which)
        for large in [second.joined(part.threshold(share)) for share in _SECOND]:
            for first in pairs:
                if first.large is second.small and large.rest:
                    yield replace(first, large=large)


def cascades(pairs: Iterable[CascadePair]) -> list[Cascade]:
    """Cascades of every pair that defer each of `SHARES`."""
    return [pair.at(pair.threshold(share)) for pair in pairs for share in SHARES]


def front_of(found: Sequence[Cascade]) -> list[Cascade]:
    """Cascades on the Pareto front of cost and selection metric, by rising cost."""
    front: list[Cascade] = []
    for cascade in sorted(found, key=lambda one: (one.cost, -one.metric)):
        if not front or cascade.metric > front[-1].metric:
            front.append(cascade)
    return front

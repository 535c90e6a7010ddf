"""An ensemble: the mean of the probabilities of several models, each as often as it was chosen.

Greedy selection with replacement (Caruana et al. 2004; auto-sklearn, Feurer et al. 2015): the model
that helps most is added, again and again. All is reckoned from answers that are there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.combining.members import GateRows, Member, probabilities

STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Models that all answer, and what the mean of their probabilities is worth."""

    times: Mapping[int | None, int]
    """How often each was chosen, by the number of its trial; None is the unpruned model."""
    cost: float
    """The sum of its models' costs."""
    metric: float
    heldout_metric: float
    agreement: float
    """Share of the selection rows on which it answers as the unpruned model does."""
    heldout_agreement: float


def ensembles(members: Sequence[Member], rows: GateRows, steps: int = STEPS) -> list[Ensemble]:
    """What stands after each step: the member is added of which the metric is highest, of equals
    the cheapest. Every other selection row chooses, so that the rest does not flatter."""
    shares = {
        role: np.stack([probabilities(member.logits[role]) for member in members])
        for role in ("select", "heldout")
    }
    choosing = rows.judged_by(np.arange(len(rows.labels["select"])) % 2 == 0)
    chosen: list[int] = []
    found = []
    for _ in range(steps):
        so_far = shares["select"][chosen].sum(0)[::2] if chosen else 0.0

        def key(place: int, so_far: object = so_far) -> tuple[float, float]:
            said = (so_far + shares["select"][place][::2]).argmax(-1)
            return choosing.value("select", said), -members[place].cost

        chosen.append(max(range(len(members)), key=key))
        found.append(_ensemble(members, rows, chosen, shares))
    return found


def _ensemble(
    members: Sequence[Member],
    rows: GateRows,
    chosen: Sequence[int],
    shares: Mapping[str, np.ndarray],
) -> Ensemble:
    said = {role: own[chosen].sum(0).argmax(-1) for role, own in shares.items()}
    return Ensemble(
        times=Counter(members[place].number for place in chosen),
        cost=sum(members[place].cost for place in set(chosen)),
        metric=rows.value("select", said["select"]),
        heldout_metric=rows.value("heldout", said["heldout"]),
        agreement=rows.agreement("select", said["select"]),
        heldout_agreement=rows.agreement("heldout", said["heldout"]),
    )

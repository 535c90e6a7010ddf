"""Which cascade passes a gate: what is said of it holds for all rows with 95% confidence.

To choose the cheapest of many is to choose the luckiest, too. So a third of the selection rows
chooses the pair of models, and the others, which had no part in that, choose its threshold. Of the
pair the thresholds are tested from the one that defers all rows downwards, until one fails: so the
confidence holds although many are tested (fixed sequence testing, Angelopoulos et al. 2021). Where
the large model itself fails, the unpruned one is tested in its place, in the engine in which it is
the cheapest by the rows that choose: a second test, which shares the 5% with the first. A model
alone is a cascade of it that defers nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from objectives.combining.cascade import SHARES, Cascade, CascadePair, pair_of
from objectives.combining.members import enough

_CHANCES = (0.04, 0.01)
"""Chances to pass wrongly: in the first test, and in the second one, which is seldom needed."""
_Place = tuple[float, float]
"""The mean cost of a row, and the threshold that leads to it."""


def cheapest_agreeing(pairs: Sequence[CascadePair], share: float) -> Cascade | None:
    """The cheapest cascade that agrees with the unpruned model on this share of all rows.

    The share is below 1. None where the selection rows cannot say so of any, or are too few.
    """

    def place(pair: CascadePair, needed: int | None) -> _Place | None:
        if needed is None:
            return None
        curve = pair.curve()
        failed = np.flatnonzero(curve.agreed < needed)
        last = int(failed[-1]) + 1 if len(failed) else 0
        if last == len(curve.costs):
            return None
        return float(curve.costs[last]), float(curve.thresholds[last])

    rows = _rows(pairs)
    judging = vouching(rows)
    least = needed_rows(share, judging)
    if least is None:
        return None
    alike = math.ceil(least / judging * (rows - judging))
    return _taken(
        pairs,
        lambda pair: place(pair, alike),
        lambda pair, chance: place(pair, enough(share, judging, chance)),
    )


def cheapest_keeping(
    pairs: Sequence[CascadePair], least: float, kept: float = 0.0
) -> Cascade | None:
    """The cheapest cascade, deferring one of `SHARES`, none or all of the rows, of enough metric.

    Its metric is at least `least`, or as far above `kept` times the unpruned model's on the same
    rows. None where the selection rows cannot say so of any, or are too few.
    """

    def place(pair: CascadePair, value: Callable[[CascadePair, float], float]) -> _Place | None:
        cheapest = None
        for deferred in (1.0, *reversed(SHARES), 0.0):
            threshold = pair.threshold(deferred)
            if value(pair, threshold) < least:
                break
            cheapest = pair.cost(deferred), threshold
        return cheapest

    def measured(pair: CascadePair, threshold: float) -> float:
        original = pair.rows.value("select", pair.rows.original["select"])
        return pair.rows.value("select", pair.said("select", threshold)) - kept * original

    def vouched(pair: CascadePair, chance: float) -> _Place | None:
        if kept and enough(kept, vouching(_rows(pairs)), chance) is None:
            return None  # where no row differs a bootstrap is sure of anything
        return place(
            pair,
            lambda pair, threshold: pair.rows.surely(
                "select", pair.said("select", threshold), kept, chance
            ),
        )

    return _taken(pairs, lambda pair: place(pair, measured), vouched)


def needed_rows(share: float, judging: int) -> int | None:
    """Fewest of the rows that vouch that must agree for the gate; None if all would not do."""
    return enough(share, judging, _CHANCES[0])


def vouching(rows: int) -> int:
    """Number of selection rows, of `rows`, that decide on a gate; the others choose."""
    return rows - int(_choosing(rows).sum())


def _choosing(rows: int) -> NDArray[np.bool_]:
    """Every third of the selection rows."""
    return np.asarray(np.arange(rows) % 3 == 0)


def _rows(pairs: Sequence[CascadePair]) -> int:
    return len(pairs[0].sure["select"]) if pairs else 0


def _taken(
    pairs: Sequence[CascadePair],
    chosen_by: Callable[[CascadePair], _Place | None],
    vouched_for: Callable[[CascadePair, float], _Place | None],
) -> Cascade | None:
    """The pair that is cheapest by the rows that choose, at the threshold of the others. Where the
    large model itself does not pass by these, the unpruned one stands in for it."""
    third = _choosing(_rows(pairs))
    fitted = [_fitted(pair, third) for pair in pairs]
    places = [(chosen_by(pair.judged_by(third)), number) for number, pair in enumerate(fitted)]
    ranked = sorted((place[0], number) for place, number in places if place is not None)
    if not ranked:
        return None
    first, *others = (fitted[number] for _, number in ranked)
    to_unpruned = (
        pair for pair in others if pair.small is first.small and pair.large.number is None
    )
    for pair, chance in zip((first, *islice(to_unpruned, 1)), _CHANCES, strict=False):
        vouched = vouched_for(pair.judged_by(~third), chance)
        if vouched is None:
            continue
        if vouched[0] >= pair.large.cost:  # the large model passed first, and costs less alone
            return CascadePair(pair.large, pair.large, pair.rows, "probability", 1.0).at(-math.inf)
        return pair.at(vouched[1])
    return None


def _fitted(pair: CascadePair, third: NDArray[np.bool_]) -> CascadePair:
    """With the confidence and the temperature that the rows which choose tell best by."""
    part = pair.judged_by(third)
    fitted = pair_of(part.small, part.large, part.rows)
    return replace(pair, confidence=fitted.confidence, temperature=fitted.temperature)


def most_agreeing_within(pairs: Sequence[CascadePair], cost: float) -> Cascade | None:
    """The cascade of the highest agreement among those of at most this mean cost, if any."""
    candidates = []
    for pair in pairs:
        curve = pair.curve()
        agreed = np.where(curve.costs <= cost, curve.agreed, -1)
        place = int(agreed.argmax())
        if agreed[place] >= 0:
            key = (int(agreed[place]), -float(curve.costs[place]))
            candidates.append((key, float(curve.thresholds[place]), pair))
    if not candidates:
        return None
    _, threshold, pair = max(candidates, key=lambda candidate: candidate[0])
    return pair.at(threshold)

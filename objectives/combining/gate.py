"""Which cascade passes a gate: what is said of it holds for all rows with 95% confidence.

To choose the cheapest of many is to choose the luckiest, too. So a third of the selection rows
chooses the pair of models, the large one of which may be a cascade itself, and the others, which
had no part in that, choose its threshold. Of the pair the thresholds are tested from the one that
defers all rows downwards, until one fails: so the confidence holds although many are tested (fixed
sequence testing, Angelopoulos et al. 2021). Where the large model itself fails, a pair of two is
tested, which is the cheapest by a more cautious choice, and at last one with the unpruned model:
the tests share the 5%. A model alone is a cascade of it that defers nothing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from objectives.combining.cascade import SHARES, Cascade, CascadePair, judged, pair_of, threefold
from objectives.combining.members import enough

_TESTS = ((0.5, 0.04), (2.0, 0.005), (1.0, 0.005))
"""The caution of the choice and the chance to pass wrongly, of each test in turn."""
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
    margin = least / judging - share

    def chosen(pair: CascadePair, caution: float, _: float) -> _Place | None:
        return place(pair, math.ceil((share + caution * margin) * (rows - judging)))

    return _taken(
        pairs,
        chosen,
        lambda pair, chance: place(pair, enough(share, judging, chance)),
    )


def cheapest_keeping(
    pairs: Sequence[CascadePair], least: float, kept: float = 0.0
) -> Cascade | None:
    """The cheapest cascade, deferring one of `SHARES`, none or all of the rows, of enough metric.

    Its metric is at least `least`, or as far above `kept` times the unpruned model's on the same
    rows. None where the selection rows cannot say so of any, or are too few.
    """

    def place(
        pair: CascadePair, value: Callable[[CascadePair, float], float], below: float = math.inf
    ) -> _Place | None:
        cheapest = None
        for deferred in (1.0, *reversed(SHARES), 0.0):
            threshold = pair.threshold(deferred)
            cost = pair.cost(threshold)
            if cost >= below and deferred < 1:  # the large model must pass in any case
                continue
            if value(pair, threshold) < least:
                break
            cheapest = cost, threshold
        return cheapest

    def likely(pair: CascadePair, threshold: float, caution: float) -> float:
        """Predict, by the rows that choose, what as many rows as vouch will be sure of."""
        answers = pair.said("select", threshold)
        original = pair.rows.value("select", pair.rows.original["select"])
        value = pair.rows.value("select", answers) - kept * original
        margin = value - pair.rows.surely("select", answers, kept, _TESTS[0][1])
        judging = vouching(_rows(pairs))
        return float(value - caution * margin * math.sqrt((_rows(pairs) - judging) / judging))

    def vouched(pair: CascadePair, chance: float) -> _Place | None:
        if kept and enough(kept, vouching(_rows(pairs)), chance) is None:
            return None  # where no row differs a bootstrap is sure of anything
        return place(
            pair,
            lambda pair, threshold: pair.rows.surely(
                "select", pair.said("select", threshold), kept, chance
            ),
        )

    return _taken(
        pairs,
        lambda pair, caution, below: place(pair, partial(likely, caution=caution), below),
        vouched,
    )


def needed_rows(share: float, judging: int) -> int | None:
    """Fewest of the rows that vouch that must agree for the gate; None if all would not do."""
    return enough(share, judging, _TESTS[0][1])


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
    chosen_by: Callable[[CascadePair, float, float], _Place | None],
    vouched_for: Callable[[CascadePair, float], _Place | None],
) -> Cascade | None:
    """The pair that is cheapest by the rows that choose, at the threshold of the others. Where the
    large model itself does not pass by these, a pair with another one, chosen with more caution."""
    third = _choosing(_rows(pairs))

    def cheapest(some: Iterable[CascadePair], caution: float) -> CascadePair | None:
        """The cheapest by the rows that choose, if any passes."""
        best, cost = None, math.inf
        for pair in some:
            place = chosen_by(pair.judged_by(third), caution, cost)
            if place is not None and place[0] < cost:
                best, cost = pair, place[0]
        return best

    fitted = [_fitted(pair, third) for pair in pairs]
    for test, (caution, chance) in enumerate(_TESTS):
        candidates = fitted
        if test == 0:
            candidates = [*fitted, *threefold(fitted, third)]
        elif test == len(_TESTS) - 1:
            candidates = [pair for pair in fitted if pair.large.number is None]
        pair = cheapest(candidates, caution)
        if pair is None:
            continue
        vouching_pair = pair.judged_by(~third)
        vouched = vouched_for(vouching_pair, chance)
        if vouched is not None:
            cost, threshold = vouched
            alone = cost >= vouching_pair.large.cost  # the large model passed, and costs less
            return judged(pair.large, pair.rows) if alone else pair.at(threshold)
        fitted = [other for other in fitted if other.large is not pair.large]
    return None


def _fitted(pair: CascadePair, third: NDArray[np.bool_]) -> CascadePair:
    """With the confidence and the temperature that the rows which choose tell best by."""
    part = pair.judged_by(third)
    fitted = pair_of(part.small, part.large, part.rows)
    return replace(pair, confidence=fitted.confidence, temperature=fitted.temperature)


def most_agreeing_within(pairs: Sequence[CascadePair], cost: float) -> Cascade | None:
    """The cascade of the highest agreement among those of at most this mean cost, if any."""
    candidates = []
    for pair in [*pairs, *threefold(pairs)]:
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

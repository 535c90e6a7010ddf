"""Choose a cascade that passes a gate: its promise holds for all rows with 95% confidence.

To choose the cheapest of many is to choose the luckiest, too. So a third of the selection rows
orders the cascades: their Pareto front of cost and agreement with the unpruned model. The others,
which had no part in that, test the front from its best cascade downwards, until one fails; the last
that passed is taken. So the confidence holds although many are tested (fixed sequence testing,
Angelopoulos et al. 2021; along a Pareto front Laufer-Goldshtein et al. 2023). A metric is tested on
the same front: by the metric of few rows its order would be luck. A model alone is a cascade that
defers nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from objectives.combining.cascade import Cascade, CascadePair, judged, pair_of, threefold
from objectives.combining.members import enough

_STEP = 0.98
"""Largest cost of the next tested cascade, as a share of the one before: nearer ones differ in few
answers, and a bootstrap takes long. A single model is always tested."""
_MARGIN = 0.95
"""Share of a limit of costs that a cascade may take on the rows that choose it."""


def cheapest_agreeing(pairs: Sequence[CascadePair], share: float) -> Cascade | None:
    """Cheapest cascade that provably agrees with the unpruned model on this share of all rows."""
    needed = enough(share, vouching(_rows(pairs)))
    if needed is None:
        return None

    def passes(pair: CascadePair, threshold: float) -> bool:
        agrees = pair.said("select", threshold) == pair.rows.original["select"]
        return int(agrees.sum()) >= needed

    return _cheapest_passing(pairs, passes)


def cheapest_keeping(
    pairs: Sequence[CascadePair], least: float, kept: float = 0.0
) -> Cascade | None:
    """Cheapest cascade whose metric is provably `least` above `kept` times the unpruned one's."""
    # Where no row differs a bootstrap is sure of anything: rows that may show no breaking share,
    # though there is one, cannot vouch.
    share = pairs[0].rows.share_that_breaks(least, kept) if pairs else 0.0
    if enough(1 - share, vouching(_rows(pairs))) is None:
        return None

    def passes(pair: CascadePair, threshold: float) -> bool:
        return pair.rows.surely("select", pair.said("select", threshold), kept) >= least

    return _cheapest_passing(pairs, passes)


def vouching(rows: int) -> int:
    """Number of selection rows, of `rows`, that decide on a gate; the others choose."""
    return rows - int(choosing(rows).sum())


def choosing(rows: int) -> NDArray[np.bool_]:
    """Every third of the selection rows."""
    return np.asarray(np.arange(rows) % 3 == 0)


def _rows(pairs: Sequence[CascadePair]) -> int:
    return len(pairs[0].sure["select"]) if pairs else 0


def _cheapest_passing(
    pairs: Sequence[CascadePair], passes: Callable[[CascadePair, float], bool]
) -> Cascade | None:
    """Test cascades, in the order of the choosing rows, the cheapest last, until one fails."""
    if not pairs:
        return None
    third = choosing(_rows(pairs))
    fitted = [_fitted(pair, third) for pair in pairs]
    candidates = [*fitted, *threefold(fitted, third)]
    curves = [pair.judged_by(third).curve() for pair in candidates]
    numbers = np.repeat(np.arange(len(curves)), [len(curve.costs) for curve in curves])
    thresholds, costs, agreed = map(np.concatenate, zip(*curves, strict=True))
    order = np.lexsort((-agreed, costs))
    best = np.maximum.accumulate(agreed[order])
    front = order[np.diff(best, prepend=-math.inf) > 0]
    # Few rows may all be right before all are deferred: begin with the model that agrees most.
    small = candidates[numbers[front[-1]]].small
    on_third = [pair.judged_by(third) for pair in fitted]
    agreed_of_large = [
        part.rows.agreement("select", part.large.logits["select"].argmax(-1)) for part in on_third
    ]
    safest = max(
        range(len(fitted)),
        key=lambda n: (fitted[n].small is small, agreed_of_large[n], fitted[n].large.cost),
    )
    safer = (numbers[order] == safest) & (costs[order] > costs[front[-1]])
    judging = cache(lambda number: candidates[number].judged_by(~third))
    cheapest, cost = None, math.inf
    for index in (*order[safer][::-1], *front[::-1]):
        if costs[index] > _STEP * cost and thresholds[index] > -math.inf:
            continue
        pair, threshold, cost = candidates[numbers[index]], float(thresholds[index]), costs[index]
        if not passes(judging(numbers[index]), threshold):
            break
        cheapest = pair, threshold
    if cheapest is None:
        return None
    pair, threshold = cheapest
    # Where all is deferred the large model alone costs less.
    return judged(pair.large, pair.rows) if threshold == math.inf else pair.at(threshold)


def _fitted(pair: CascadePair, third: NDArray[np.bool_]) -> CascadePair:
    """Fit confidence and temperature of a pair on the choosing rows."""
    part = pair.judged_by(third)
    fitted = pair_of(part.small, part.large, part.rows)
    return replace(pair, confidence=fitted.confidence, temperature=fitted.temperature)


def most_agreeing_within(pairs: Sequence[CascadePair], cost: float) -> Cascade | None:
    """Most agreeing cascade that leaves a margin to this mean cost, or else is within it."""
    # Other texts defer more or less, and take longer or shorter.
    return _within(pairs, _MARGIN * cost) or _within(pairs, cost)


def _within(pairs: Sequence[CascadePair], cost: float) -> Cascade | None:
    candidates = []
    for pair in [*pairs, *threefold(pairs)]:
        curve = pair.curve()
        agreed = np.where(curve.costs <= cost, curve.agreed, -1)
        index = int(agreed.argmax())
        if agreed[index] >= 0:
            key = (int(agreed[index]), -float(curve.costs[index]))
            candidates.append((key, float(curve.thresholds[index]), pair))
    if not candidates:
        return None
    _, threshold, pair = max(candidates, key=lambda candidate: candidate[0])
    return pair.at(threshold)

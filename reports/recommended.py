"""Which models of a front to look at first: the knee, the cheapest that lose little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.pareto import ParetoView, Point

_LOSSES = (0.01, 0.03)
"""Shares of the unpruned metric that a user may be ready to lose."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A model of the front, and what it is the answer to."""

    reasons: tuple[str, ...]
    point: Point


def recommendations(view: ParetoView) -> list[Recommendation]:
    """The knee and the cheapest models within 1% and 3% of the unpruned metric, by falling cost.

    A model that answers several questions stands there once.
    """
    wanted: dict[int, list[str]] = {}
    metric = view.unpruned.metric
    for loss in _LOSSES if metric > 0 else ():
        near = [point for point in view.front if point.result.metric >= (1 - loss) * metric]
        if near:
            wanted.setdefault(near[0].trial, []).append(f"cheapest within {loss:.0%}")
    found = knee(view.front)
    if found is not None:
        wanted.setdefault(found.trial, []).append("knee")
    return [
        Recommendation(reasons=tuple(wanted[point.trial]), point=point)
        for point in reversed(view.front)
        if point.trial in wanted
    ]


def knee(front: Sequence[Point]) -> Point | None:
    """The point furthest above the straight line between the ends of the front.

    Both axes run from 0 to 1 between the ends. None if no point lies above that line.
    """
    if len(front) < 3:
        return None
    first, last = front[0].result, front[-1].result

    def height(point: Point) -> float:
        along = (point.result.ratio - first.ratio) / (last.ratio - first.ratio)
        return (point.result.metric - first.metric) / (last.metric - first.metric) - along

    best = max(front, key=height)
    return best if height(best) > math.ulp(1.0) * 8 else None

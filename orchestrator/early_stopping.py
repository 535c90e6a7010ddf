"""Who goes on at a rung: early stopping for two objectives, as functions of what was reported.

Optuna knows none: `Trial.report` and `should_prune` raise NotImplementedError in a study of several
objectives (Optuna issue 3450).
"""

from __future__ import annotations

import abc
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from objectives.errors import check_ranges, check_types

Point = tuple[float, float]
"""Metric, the higher the better, and cost, the lower the better: what a trial reports at a rung."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(abc.ABC):
    """When trials report, and which of them go on. Base of the policies.

    All trials of a rung have trained alike: it is the same share of the same stages. No policy
    stops a trial of rank 0, which no other of its rung dominates.
    """

    rungs: tuple[float, ...] = (1 / 3, 2 / 3)
    """Shares of the steps of all stages after which a trial reports. Rising, in (0, 1)."""

    def __post_init__(self) -> None:
        check_types(self)
        rising = all(low < high for low, high in pairwise((0.0, *self.rungs, 1.0)))
        check_ranges(self, {"rungs": (bool(self.rungs) and rising, "rising, in (0, 1)")})

    @abc.abstractmethod
    def stops(self, own: Point, rung: Sequence[Point]) -> bool:
        """Whether a trial stops.

        Args:
            own: what it reported: metric and cost.
            rung: all that was reported at its rung so far, `own` among it, by trial number.

        Returns:
            True if it stops.
        """


@dataclass(frozen=True, kw_only=True)
class SuccessiveHalving(EarlyStopping):
    """MO-ASHA (Schmucker et al. 2021): the best share of each rung goes on, without waiting.

    Trials are ordered by non-dominated rank, within a rank by how much they add to the spread of
    those before (their epsilon-net). Each decides when it arrives, among those that came before, so
    that no worker waits for another. At most 1 - `keep` of all that were reported so far are past
    the best share; of those that decide at once all may stop, or none.
    """

    keep: float = 0.5
    """Share of a rung that goes on, rounded up. In (0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, {"keep": (0 < self.keep <= 1, "in (0, 1]")})

    def stops(self, own: Point, rung: Sequence[Point]) -> bool:
        """Whether `own` is neither of rank 0 nor among the best share."""
        rank_of = ranks(rung)
        if rank_of[own] == 0:
            return False
        going = math.ceil(round(self.keep * len(rung), 9))  # 0.1 * 30 is a little more than 3
        count = Counter(rung)
        for rank, members in groupby(sorted(rank_of, key=rank_of.__getitem__), rank_of.get):
            peers = list(members)
            if rank == rank_of[own]:
                order = spread(peers, rung)
                return sum(count[peer] for peer in order[: order.index(own)]) >= going
            going -= sum(count[peer] for peer in peers)
        raise AssertionError("own is a point of its rung")


@dataclass(frozen=True, kw_only=True)
class Hurdles(EarlyStopping):
    """Progressive dynamic hurdles (So et al. 2019), for two objectives. Experimental: on replayed
    trials they saved nothing for certain.

    Of the trials at a rung the first n by number set the hurdle, n the largest multiple of `every`
    that have arrived. The fitness of a trial is the number of these n that dominate it, the hurdle
    their mean fitness. A trial that more of them dominate than that stops; while n is 0 all go on.
    With several workers a trial may arrive after one of a higher number: it joins those n. (So et
    al. set a hurdle once, and stop those that are equal to it.)
    """

    every: int = 8
    """Trials of a rung from one hurdle to the next. >= 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, {"every": (self.every >= 2, ">= 2")})

    def stops(self, own: Point, rung: Sequence[Point]) -> bool:
        """Whether `own` is dominated by more trials than the mean of those that set the hurdle."""
        setting = rung[: len(rung) // self.every * self.every]
        if not setting:
            return False
        dominated = times_dominated([own, *setting], setting)
        return dominated[0] > float(np.mean(dominated[1:]))


def ranks(points: Collection[Point]) -> dict[Point, int]:
    """The non-dominated rank of each point: 0 on the front, 1 on what is the front without that...

    Equal points have one rank. O(n log n), since there are two objectives: by rising cost, a point
    belongs to the first rank whose best metric so far it beats.
    """
    ranked: dict[Point, int] = {}
    losses: list[float] = []  # of each rank the best so far, rising from rank to rank
    for point in sorted(set(points), key=lambda point: (point[1], -point[0])):
        loss = -point[0]
        rank = bisect_right(losses, loss)
        losses[rank : rank + 1] = [loss]
        ranked[point] = rank
    return ranked


def spread(points: Collection[Point], frame: Collection[Point]) -> list[Point]:
    """The points in the order of an epsilon-net: each is the farthest from all before it.

    The cheapest is first. Metric and cost count as shares of their ranges over `frame`. Where two
    are equally far the cheaper is first, so that the order of `points` does not matter.
    """
    left = sorted(set(points), key=lambda point: (point[1], point[0]))
    low, high = (np.array([edge(axis) for axis in zip(*frame, strict=True)]) for edge in (min, max))
    scaled = (np.array(left) - low) / np.where(high > low, high - low, 1.0)
    distance = np.full(len(left), np.inf)
    order = []
    for _ in left:
        place = int(np.argmax(distance))
        order.append(left[place])
        distance = np.minimum(distance, np.linalg.norm(scaled - scaled[place], axis=1))
        distance[place] = -1.0
    return order


def times_dominated(points: Sequence[Point], by: Sequence[Point]) -> list[int]:
    """By how many of `by` each point is dominated: no worse in both, better in one."""
    metric, cost = np.array(by).T
    return [
        int(np.sum((metric >= own[0]) & (cost <= own[1]) & ((metric > own[0]) | (cost < own[1]))))
        for own in points
    ]

"""Progressive dynamic hurdles: who of a search's candidates is trained further.

So et al. 2019 (Evolved Transformer). Training comes in increments; whose fitness reaches the
hurdle behind an increment gets the next one. Two readings of the source are here:

    dynamic     the paper's (`Hurdles`). Hurdles act on later candidates. There is none at first;
                each that is added is the mean fitness of those in the population that were trained
                up to it and no further.
    static      successive halving by means (`judged_together`). All candidates are trained
                together, and the mean of those that are left is the hurdle behind each increment.

A fitness equal to the hurdle passes: candidates that are all alike are all trained further.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple, TypeVar

Train = TypeVar("Train", bound=Callable[[int], float])
"""Trains one candidate for so many more steps, and gives its fitness; the higher the better."""


class Judged(NamedTuple):
    """How far a candidate came."""

    fitness: float
    """After its last increment."""
    increments: int
    """How many it was trained for."""


class Hurdles:
    """Trains candidates, one after another, as far as the hurdles let them."""

    def __init__(self, increments: Sequence[int]):
        """`increments` are steps, before the first hurdle and after each."""
        self.increments = tuple(increments)
        self.heights: list[float] = []
        """The hurdles behind the first increment, the second and so on."""

    def judge(self, trains: Iterable[Train]) -> Iterator[tuple[Train, Judged]]:
        """Each with how far it came; the next one is not asked for before."""
        first, *further = self.increments
        for train in trains:
            fitness, trained = train(first), 1
            for height, steps in zip(self.heights, further, strict=False):
                if fitness < height:
                    break
                fitness, trained = train(steps), trained + 1
            yield train, Judged(fitness, trained)

    def add(self, population: Iterable[Judged]) -> None:
        """Add the next hurdle, if an increment lies behind it and somebody came so far."""
        level = len(self.heights) + 1
        equals = [one.fitness for one in population if one.increments == level]
        if equals and level < len(self.increments):
            self.heights.append(fmean(equals))


def judged_together(
    increments: Sequence[int], trains: Iterable[Train]
) -> Iterator[tuple[Train, Judged]]:
    """The static reading: each with how far it came."""
    every = list(trains)
    judged: dict[int, Judged] = {}
    left = list(range(len(every)))
    for level, steps in enumerate(increments, 1):
        judged |= {index: Judged(every[index](steps), level) for index in left}
        height = fmean(judged[index].fitness for index in left) if left else 0.0
        left = [index for index in left if judged[index].fitness >= height]
    yield from ((train, judged[index]) for index, train in enumerate(every))

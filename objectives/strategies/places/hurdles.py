"""Progressive dynamic hurdles: who of a search's candidates is trained further.

So et al. 2019 (Evolved Transformer). Training comes in increments; whose fitness reaches the
hurdle behind an increment gets the next one. Two readings of the source are here:

    dynamic     the paper's. Hurdles act on later candidates. There is none at first; after every
                `every` candidates one is added, the mean fitness of those in the population that
                were trained up to it and no further.
    static      successive halving by means. All candidates are trained together, and the mean of
                those that are left is the hurdle behind each increment.

A fitness equal to the hurdle passes: candidates that are all alike are all trained further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from objectives.errors import check_ranges

Train = Callable[[int], float]
"""Trains one candidate for so many more steps, and gives its fitness; the higher the better."""


@dataclass(frozen=True, kw_only=True)
class HurdleSettings:
    """The paper: increments (60000, 60000, 120000), every 5000 candidates, a population of 100."""

    increments: tuple[int, ...]
    """Steps of training, before the first hurdle and after each. > 0 each."""
    reading: Literal["dynamic", "static"] = "dynamic"
    """Hurdles for later candidates, or for those trained together."""
    every: int = 5000
    """Candidates before each new hurdle of the dynamic reading. >= 1."""
    population: int = 100
    """So many of the last candidates make a dynamic hurdle. >= 1."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            increments=(
                len(self.increments) > 0 and min(self.increments) > 0,
                "numbers of steps > 0, at least one",
            ),
            every=(self.every >= 1, ">= 1"),
            population=(self.population >= 1, ">= 1"),
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How far a candidate came."""

    fitness: float
    """After its last increment."""
    increments: int
    """How many it was trained for."""


class Hurdles:
    """Trains candidates as far as the hurdles let them."""

    def __init__(self, settings: HurdleSettings):
        self.settings = settings
        self.heights: list[float] = []
        """The hurdles behind the first increment, the second and so on: dynamic ones."""
        self._judged: list[Judged] = []  # the population, the oldest first
        self._since = 0  # candidates since the last hurdle

    def judge(self, trains: Sequence[Train]) -> list[Judged]:
        """Train these candidates; in the dynamic reading each one as if it came alone."""
        if self.settings.reading == "static":
            return self._judge_together(trains)
        return [self._judge_next(train) for train in trains]

    def _judge_next(self, train: Train) -> Judged:
        first, *further = self.settings.increments
        fitness, trained = train(first), 1
        for height, steps in zip(self.heights, further, strict=False):
            if fitness < height:
                break
            fitness, trained = train(steps), trained + 1
        judged = Judged(fitness=fitness, increments=trained)
        self._judged = [*self._judged, judged][-self.settings.population :]
        self._since += 1
        if self._since >= self.settings.every and len(self.heights) < len(further):
            level = len(self.heights) + 1
            equals = [one.fitness for one in self._judged if one.increments == level]
            if equals:  # or else the hurdle waits for the first that comes so far
                self.heights.append(fmean(equals))
                self._since = 0
        return judged

    def _judge_together(self, trains: Sequence[Train]) -> list[Judged]:
        judged: dict[int, Judged] = {}
        left = list(range(len(trains)))
        for level, steps in enumerate(self.settings.increments, 1):
            for index in left:
                judged[index] = Judged(fitness=trains[index](steps), increments=level)
            height = fmean(judged[index].fitness for index in left) if left else 0.0
            left = [index for index in left if judged[index].fitness >= height]
        return [judged[index] for index in range(len(trains))]

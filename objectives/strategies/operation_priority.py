"""Evolution whose mutation prefers choices that did well: operation priority (OP-NAS).

Gao et al. 2022, AutoBERT-Zero: the parents are the best candidates so far. A child differs from its
parent at one place, whose choice is drawn from a softmax over upper confidence bounds,"""

#     u_i = mean_i + exploration sqrt(2 ln N / N_i),
#
# where mean_i is the mean score of the candidates that have choice i at that place, N_i how many
# these are, and N the sum of the N_i. What the paper leaves open is decided so: a choice that was
# never tried comes first; scores are standardised, so that `exploration` and `temperature` mean the
# same on every task; and a child that was scored before or is rejected is drawn again. What was
# learned may lack places, those that do not act in it: they count for no bound, and each child has
# them drawn again.

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.errors import (
    Checked,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UserError,
    did_you_mean,
)
from objectives.strategies.strategy import TRIES, Candidate, Choice, Places, Remembering


@dataclass(frozen=True, kw_only=True)
class PrioritySettings(Checked):
    """Settings of `OperationPriority`; the counts are the paper's."""

    initial: PositiveInt = 100
    """Candidates drawn at random before the first child. >= 1."""
    parents: PositiveInt = 5
    """The best candidates, which have children in turn. >= 1."""
    exploration: NonNegativeFloat = 0.3
    """Weight of the bound beside the mean, in standard deviations of the scores. >= 0."""
    temperature: PositiveFloat = 0.5
    """Temperature of the softmax over the bounds, in standard deviations of the scores. > 0."""
    uniform: tuple[str, ...] = ()
    """Places of which one is first changed at random: the paper's kinds of layers. The others are
    the operations within a layer, which priority is about."""


class OperationPriority(Remembering):
    """`learned` is all that was scored. Children of the parents take turns."""

    def __init__(
        self,
        places: Places,
        seed: int,
        settings: PrioritySettings = PrioritySettings(),
        accepts: Callable[[Candidate], bool] = lambda child: True,
    ):
        """`accepts` says whether a child can be a model at all."""
        super().__init__(places, seed)
        for name in settings.uniform:
            if name not in places:
                raise UserError(
                    f"PrioritySettings.uniform names '{name}', which is not a place"
                    f"{did_you_mean(name, list(places))}"
                )
        self._settings, self._accepts = settings, accepts
        self._rejected: set[tuple[str, Choice]] = set()
        """Choices of rejected children: these count as tried, though they have no score."""
        several = [name for name, choices in self.places.items() if len(choices) > 1]
        self._guided = [name for name in several if name not in settings.uniform]

    def propose(self, k: int) -> list[Candidate]:
        if len(self.learned) < self._settings.initial:
            return [self._drawn() for _ in range(k)]
        best = sorted(self.learned, key=lambda pair: -pair[1])[: self._settings.parents]
        seen = {self._key(candidate) for candidate, _ in self.learned}
        children = []
        for index in range(k):
            turn = len(self.learned) - self._settings.initial + index
            children.append(self._child(best[turn % len(best)][0], seen))
            seen.add(self._key(children[-1]))
        return children

    def bounds(self, name: str) -> NDArray[np.float64]:
        """Upper confidence bounds of the choices of a place, in standard deviations above the mean
        score; infinite where one was never tried, and that of one mean score where rejected."""
        choices, every = self.places[name], np.array([score for _, score in self.learned])
        rows = [row for row, (candidate, _) in enumerate(self.learned) if name in candidate]
        scores = ((every - every.mean()) / (every.std() or 1.0))[rows]
        column = np.array([choices.index(self.learned[row][0][name]) for row in rows], dtype=int)
        counts = np.bincount(column, minlength=len(choices))
        sums = np.bincount(column, weights=scores, minlength=len(choices))
        tried = np.maximum(counts, 1)
        widths = np.sqrt(2 * math.log(max(1, len(scores))) / tried)
        counted = zip(counts, choices, strict=True)
        untried = [not n and (name, choice) not in self._rejected for n, choice in counted]
        return np.where(untried, np.inf, sums / tried + self._settings.exploration * widths)

    def _child(self, parent: Candidate, known: set[tuple[Choice, ...]]) -> Candidate:
        child, odds = parent, dict[str, NDArray[np.float64]]()
        uniform = [name for name in self._settings.uniform if name in parent]
        guided = [name for name in self._guided if name in parent]
        for _ in range(TRIES):
            child, name = self._changed(parent, uniform), ""
            if guided:
                name = guided[int(self._rng.integers(len(guided)))]
                child = {**child, name: self._preferred(name, odds)}
            if len(child) < len(self.places):
                child = {**self._drawn(), **child}
            if self._key(child) not in known:
                if self._accepts(child):
                    break
                self._rejected.add((name, child.get(name)))
                odds.pop(name, None)
        return child

    def _preferred(self, name: str, odds: dict[str, NDArray[np.float64]]) -> Choice:
        """Draw a choice by priority; `odds` are the probabilities of the places seen so far."""
        if name not in odds:
            bounds = self.bounds(name)
            odds[name] = np.isinf(bounds).astype(float)
            if not odds[name].any():
                odds[name] = np.exp((bounds - bounds.max()) / self._settings.temperature)
        weights = odds[name]
        return self.places[name][int(self._rng.choice(len(weights), p=weights / weights.sum()))]

"""A Gaussian process over edit distances, with an upper confidence bound: Auto-Keras.

Jin et al. 2019. Candidates are embedded by their distances to random sets of known ones (Bourgain),
a space in which exp(-distance^2) is a valid kernel. The candidate with the largest mean + beta std
is looked for by simulated annealing over neighbours, candidates that differ at one place."""

# Three things differ from Auto-Keras. Its ports embed the known candidates and measure the new ones
# by another distance; here both are embedded. Its kernel has no length scale; here the length is
# the one of a few under which the scores are most likely. And scores are standardised, so that the
# temperature of the annealing means the same on every task.

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from objectives.errors import Checked, InnerShare, NonNegativeFloat, PositiveFloat, PositiveInt
from objectives.strategies.strategy import TRIES, Candidate, Choice, Places, Remembering

Distance = Callable[[Candidate, Candidate], float]
"""Distance of two candidates: symmetric, >= 0, 0 for equal ones, and no detour is shorter."""

_LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths of the kernel, in mean distances between embedded candidates."""


def places_apart(one: Candidate, other: Candidate) -> float:
    """The number of places at which two candidates differ."""
    return float(sum(one[name] != other[name] for name in one))


@dataclass(frozen=True, kw_only=True)
class DistanceSettings(Checked):
    """Where nothing is said, the defaults are those of Auto-Keras."""

    beta: NonNegativeFloat = 2.576
    """Weight of the standard deviation beside the mean. >= 0."""
    initial: Annotated[int, ">= 2"] = 10
    """Candidates drawn at random before the first one of the process. >= 2. Ours."""
    noise: PositiveFloat = 1e-4
    """Variance of what comes on top of a score, as a share of the variance of the scores. > 0.
    Ours: Auto-Keras has 1e-10, at which rounding errors decide."""
    neighbours: PositiveInt = 8
    """Neighbours of an accepted candidate in a step of the annealing. >= 1."""
    cooling: InnerShare = 0.9
    """Factor of the temperature from step to step, from 1 to 1e-4. In (0, 1)."""


class Embedding:
    """Bourgain's: a coordinate is the distance to the nearest member of a random set."""

    # ceil(log2 n) sizes of sets, 2, 4, ..., of each ceil(ln n) sets. No two candidates are farther
    # apart than by the distance itself, since the coordinates are divided by the root of their
    # count.

    def __init__(self, known: Sequence[Candidate], distance: Distance, rng: np.random.Generator):
        sizes = [min(2**i, len(known)) for i in range(1, math.ceil(math.log2(len(known))) + 1)]
        rounds = math.ceil(math.log(len(known)))
        self._known, self._distance = known, distance
        self._sets = [
            rng.choice(len(known), size, replace=False)
            for size in sizes or [1]
            for _ in range(max(rounds, 1))
        ]

    def __call__(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Their coordinates, (candidates, sets)."""
        apart = np.array([[self._distance(c, other) for other in self._known] for c in candidates])
        columns = [apart[:, members].min(1) for members in self._sets]
        return np.stack(columns, 1) / math.sqrt(len(columns))


class Process:
    """A Gaussian process over the scores of all candidates, fitted to the known ones."""

    def __init__(
        self,
        embedding: Embedding,
        known: Sequence[Candidate],
        scores: Sequence[float],
        noise: float,
    ):
        self._embedding = embedding
        points = embedding(known)
        spread = float(np.linalg.norm(points[:, None] - points[None], axis=-1).mean()) or 1.0
        fitted = [
            GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(points, scores)
            for kernel in (RBF(length * spread) for length in _LENGTHS)
        ]
        self.regressor = max(fitted, key=lambda process: process.log_marginal_likelihood_value_)

    def __call__(
        self, candidates: Sequence[Candidate]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and standard deviations, (candidates,) each."""
        mean, std = self.regressor.predict(self._embedding(candidates), return_std=True)
        return mean, std


class EditDistance(Remembering):
    """`learned` is all that was scored. Of candidates proposed together each counts as scored by
    its mean when the next is chosen (Desautels et al. 2014), so that they spread."""

    def __init__(
        self,
        places: Places,
        seed: int,
        settings: DistanceSettings = DistanceSettings(),
        distance: Distance = places_apart,
    ):
        super().__init__(places, seed)
        self._settings, self._distance = settings, distance

    def propose(self, k: int) -> list[Candidate]:
        if len(self.learned) < self._settings.initial:
            return [self._drawn() for _ in range(k)]
        scores: dict[tuple[Choice, ...], list[float]] = {}
        for candidate, score in self.learned:
            scores.setdefault(self._key(candidate), []).append(score)
        scored: list[Candidate] = [dict(zip(self.places, key, strict=True)) for key in scores]
        raw = np.array([np.mean(group) for group in scores.values()])
        means: list[float] = ((raw - raw.mean()) / (raw.std() or 1.0)).tolist()
        proposed: list[Candidate] = []
        for _ in range(k):
            embedding = Embedding(scored, self._distance, self._rng)
            process = Process(embedding, scored, means, self._settings.noise)
            proposed.append(self._annealed(process, scored, means))
            scored.append(proposed[-1])
            means.append(float(process(proposed[-1:])[0][0]))
        return proposed

    def _annealed(
        self, process: Process, known: Sequence[Candidate], means: Sequence[float]
    ) -> Candidate:
        """The best unknown candidate that the annealing meets. Known ones start its queue; the best
        of the queue is replaced by its neighbours if it is accepted."""
        seen = {self._key(candidate) for candidate in known}
        turn = count()  # of equal bounds the older comes first
        queue = [(-mean, next(turn), c) for c, mean in zip(known, means, strict=True)]
        heapq.heapify(queue)
        best, chosen, temperature = -math.inf, None, 1.0
        while queue and temperature > 1e-4:
            bound, _, candidate = heapq.heappop(queue)
            if self._rng.random() <= math.exp(min((-bound - best) / temperature, 0.0)):
                fresh = []
                for _ in range(self._settings.neighbours):
                    neighbour = self._changed(candidate, list(self.places))
                    if self._key(neighbour) not in seen:
                        seen.add(self._key(neighbour))
                        fresh.append(neighbour)
                for neighbour, value in zip(fresh, self._bound(process, fresh), strict=True):
                    heapq.heappush(queue, (-value, next(turn), neighbour))
                    if value > best:
                        best, chosen = value, neighbour
            temperature *= self._settings.cooling
        return self._unseen(seen) if chosen is None else chosen

    def _bound(self, process: Process, candidates: Sequence[Candidate]) -> list[float]:
        if not candidates:
            return []
        mean, std = process(candidates)
        bounds: list[float] = (mean + self._settings.beta * std).tolist()
        return bounds

    def _unseen(self, seen: set[tuple[Choice, ...]]) -> Candidate:
        """Any candidate, one that was not seen if it is found."""
        drawn = (self._drawn() for _ in range(TRIES))
        return next((c for c in drawn if self._key(c) not in seen), None) or self._drawn()

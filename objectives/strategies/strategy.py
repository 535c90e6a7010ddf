"""Contract of a strategy over places.

A strategy knows the names of places, their choices and numbers. It knows no graph, no model and no
Optuna, so that the same one runs inside a trial and as the sampler of a study."""

import abc
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from objectives.errors import UserError

Choice = bool | int | float | str | None
Places = Mapping[str, tuple[Choice, ...]]
"""Choices of each place, in order: distinct, at least one."""
Candidate = Mapping[str, Choice]
"""A choice for each place."""
Scored = Sequence[tuple[Candidate, float]]
"""Candidates and their scores; the higher the better."""
Feedback = TypeVar("Feedback", contravariant=True)

TRIES = 100
"""Tries to find a new candidate."""


class Strategy(abc.ABC, Generic[Feedback]):
    """Base of strategies that learn from feedback: `Scored`, except for soft choices."""

    def __init__(self, places: Places, seed: int):
        """Raises UserError for a place without choices, or with one twice; `seed` is >= 0."""
        for name, choices in places.items():
            if len(choices) == 0 or len(set(choices)) < len(choices):
                raise UserError(f"place '{name}' has the choices {choices!r}; give distinct ones")
        self.places = {name: tuple(choices) for name, choices in places.items()}
        """Choices by place."""
        self._rng = np.random.default_rng(seed)

    @abc.abstractmethod
    def propose(self, k: int) -> list[Candidate]:
        """Propose the next candidates to score. Not all of them need to be learned.

        Args:
            k: how many, >= 0.

        Returns:
            `k` candidates.
        """

    @abc.abstractmethod
    def learn(self, feedback: Feedback) -> None:
        """Learn from feedback, in its order: in one call or in several is the same.

        Args:
            feedback: candidates with their scores, of these places. They need not have been
                proposed here.
        """

    def _drawn(self) -> Candidate:
        return {name: self._one_of(choices) for name, choices in self.places.items()}

    def _one_of(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self._rng.integers(len(choices)))]

    def _changed(self, candidate: Candidate, among: Sequence[str]) -> Candidate:
        """Copy with another choice at one of these places; all are equally probable."""
        free = [name for name in among if len(self.places[name]) > 1]
        if not free:
            return candidate
        name = free[int(self._rng.integers(len(free)))]
        others = [choice for choice in self.places[name] if choice != candidate[name]]
        return {**candidate, name: self._one_of(others)}


class Remembering(Strategy[Scored]):
    """Base of the strategies whose knowledge is the candidates that they have learned."""

    def __init__(self, places: Places, seed: int):
        super().__init__(places, seed)
        self.learned: list[tuple[Candidate, float]] = []
        """Candidates with their scores, the oldest first."""

    def learn(self, feedback: Scored) -> None:
        self.learned += [(dict(candidate), float(score)) for candidate, score in feedback]

    def _key(self, candidate: Candidate) -> tuple[Choice, ...]:
        """Key by which equal candidates are recognised."""
        return tuple(candidate.get(name) for name in self.places)


class Uniform(Strategy[Scored]):
    """Random search, the bar for all others: it learns nothing."""

    def propose(self, k: int) -> list[Candidate]:
        return [self._drawn() for _ in range(k)]

    def learn(self, feedback: Scored) -> None:
        """Ignore the feedback."""

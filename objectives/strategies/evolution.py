"""Evolution by tournament: ageing (Real et al. 2019), and as the Evolved Transformer has it.

A parent is the best of a sample of the population. Its child is scored and joins the population,
which somebody then leaves: the oldest ("regularised" evolution), or the worst of another sample
(So et al. 2019). So that one strategy serves many workers, the two happen when a score is learned.
"""

from dataclasses import dataclass
from typing import Literal

from objectives.errors import Checked, PositiveInt, PositiveShare
from objectives.strategies.strategy import Candidate, Places, Remembering, Scored


@dataclass(frozen=True, kw_only=True)
class EvolutionSettings(Checked):
    """Settings of `Evolution`; the defaults are those of Real et al. 2019 for CIFAR-10."""

    population: PositiveInt = 100
    """Size of the population; this many candidates are first drawn at random. >= 1."""
    sample: PositiveInt = 25
    """Candidates of a tournament, drawn from the population with replacement. >= 1."""
    dies: Literal["oldest", "worst"] = "oldest"
    """Candidate that is removed: the oldest, or the worst of a sample."""
    mutation: PositiveShare | None = None
    """Probability in (0, 1] that a place is drawn again; None: one place, to another choice."""


class Evolution(Remembering):
    """Tournament evolution; `learned` is the population."""

    def __init__(
        self, places: Places, seed: int, settings: EvolutionSettings = EvolutionSettings()
    ):
        super().__init__(places, seed)
        self._settings = settings

    def propose(self, k: int) -> list[Candidate]:
        return [self._child() for _ in range(k)]

    def learn(self, feedback: Scored) -> None:
        for pair in feedback:
            super().learn([pair])
            if len(self.learned) > self._settings.population:
                oldest = self._settings.dies == "oldest"
                self.learned.pop(0 if oldest else min(self._sampled(), key=self._score))

    def _child(self) -> Candidate:
        if len(self.learned) < self._settings.population:
            return self._drawn()
        parent, _ = self.learned[max(self._sampled(), key=self._score)]
        if self._settings.mutation is None:
            return self._changed(parent, list(self.places))
        anew = self._rng.random(len(self.places)) < self._settings.mutation
        return {
            name: self._one_of(choices) if again else parent[name]
            for (name, choices), again in zip(self.places.items(), anew, strict=True)
        }

    def _sampled(self) -> list[int]:
        drawn: list[int] = self._rng.integers(
            len(self.learned), size=self._settings.sample
        ).tolist()
        return drawn

    def _score(self, index: int) -> float:
        return self.learned[index][1]

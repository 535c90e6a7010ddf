"""Random search: each choice with equal probability. The bar for all others."""

from objectives.strategies.places.strategy import Candidate, Scored, Strategy


class Uniform(Strategy[Scored]):
    """Draws candidates and learns nothing."""

    def propose(self, k: int) -> list[Candidate]:
        return [self._drawn() for _ in range(k)]

    def learn(self, feedback: Scored) -> None:
        """There is nothing to learn."""

"""What the methods share that learn weights of few bits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from objectives.problem import Problem
from objectives.strategies.importance import worth_per_price
from objectives.strategies.one_shot import OneShot


@dataclass(frozen=True, kw_only=True)
class FewBits(OneShot):
    """Base of the methods for which bits are the point; the units of most worth stay."""

    input_bits: int | tuple[int, ...] = 8
    """To which what enters a weight of few bits is rounded: 32 (not at all), 8 or 4."""
    embedding_bits: int = 2
    """Of the embeddings of words and positions, which are rounded before the training and stay:
    32, 8, 4, 2 or 1."""

    def worth(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """How far the answer moves without a unit (Fisher information), per price."""
        del seed
        return worth_per_price(problem, self.spaces, "logits")

"""What alphas share that follow gradients: the knobs of each student, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from objectives.problem import Problem
from objectives.staged_method import StagedMethod
from objectives.strategies.alpha_optimizers import AlphaOptimizer

Method = TypeVar("Method", bound=StagedMethod)


def knobs_of(members: Sequence[StagedMethod], names: Sequence[str], device: str) -> list[Tensor]:
    """Fields of all members: for each name (K,) float32."""
    return [
        torch.tensor(
            [getattr(member, name) for member in members], dtype=torch.float32, device=device
        )
        for name in names
    ]


class DescendingAlpha(Generic[Method]):
    """Base of the alphas that an `AlphaOptimizer` moves: a subclass sets both."""

    alpha: dict[str, Tensor]
    """Leaves, (K, layers, ...) of each space; the optimiser has this dict."""
    optimizer: AlphaOptimizer

    def __init__(self, members: Sequence[Method], problem: Problem, seed: int):
        self.members, self.method, self.problem = members, members[0], problem
        self.generator = torch.Generator().manual_seed(seed)
        self.flops_weight, self.target_ratio, self.tolerance, self.step_size = knobs_of(
            members, ("flops_weight", "target_ratio", "tolerance", "grad_rescale"), problem.device
        )

    def of(self, place: int) -> dict[str, Tensor]:
        """The alpha of one student, on the CPU. Raises FloatingPointError if it is not finite."""
        alpha = {space: value[place].detach().cpu() for space, value in self.alpha.items()}
        if not all(value.isfinite().all() for value in alpha.values()):
            raise FloatingPointError("alpha is nan or infinite after the search")
        return alpha

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Of the losses of all students, (K,), with respect to alpha: 0 where none moves them."""
        if not loss.requires_grad:
            return {space: torch.zeros_like(value) for space, value in self.alpha.items()}
        leaves = list(self.alpha.values())
        found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True)
        return dict(zip(self.alpha, found, strict=True))

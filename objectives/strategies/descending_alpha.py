"""What searches share whose alpha follows gradients: their knobs, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from objectives.errors import UserError, check_ranges
from objectives.problem import Problem
from objectives.staged_method import StagedMethod
from objectives.strategies.alpha_optimizers import AlphaOptimizer
from objectives.training.stages import Stage


@dataclass(frozen=True, kw_only=True)
class DescendingMethod(StagedMethod):
    """Base of the methods whose alpha follows gradients in the stages that search."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}

    flops_weight: float
    """lambda: weight of the FLOPs loss beside the task loss of alpha. >= 0."""
    grad_rescale: float = 0.1
    """kappa: step size of alpha's optimiser. > 0."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=2, searches=True),
        Stage(name="recover", epochs=1),
    )
    """What the weights go through, those that search first."""
    temperature: tuple[float, float]
    """Of the masks at the start and at the end of a search. > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        falls = len(self.temperature) == 2 and min(self.temperature) > 0
        check_ranges(
            self,
            {
                "flops_weight": (self.flops_weight >= 0, ">= 0"),
                "grad_rescale": (self.grad_rescale > 0, "> 0"),
                "temperature": (falls, "two numbers > 0"),
            },
        )
        if not any(stage.searches for stage in self.stages):
            raise UserError(
                f"{type(self).__name__}.stages: none of them searches; alpha would learn nothing"
            )


Method = TypeVar("Method", bound=DescendingMethod)


class DescendingAlpha(Generic[Method]):
    """Base of the alphas that an `AlphaOptimizer` moves: a subclass sets both."""

    alpha: dict[str, Tensor]
    """Leaves, (K, layers, ...) of each space; the optimiser has this dict."""
    optimizer: AlphaOptimizer

    def __init__(self, members: Sequence[Method], problem: Problem, seed: int):
        self.members, self.method, self.problem = members, members[0], problem
        self.generator = torch.Generator().manual_seed(seed)
        knobs = [(m.flops_weight, m.target_ratio, m.tolerance, m.grad_rescale) for m in members]
        self.flops_weight, self.target_ratio, self.tolerance, self.step_size = (
            torch.tensor(values, dtype=torch.float32, device=problem.device)
            for values in zip(*knobs, strict=True)
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

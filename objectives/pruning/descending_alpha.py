"""Alpha that follows gradients: its optimisers and base class."""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from objectives.problem import Problem
from objectives.training.optimisation import per_student

Gradients = Mapping[str, Tensor]
"""Gradients of each space, of the shape of its alpha: (K, layers, *units)."""


# In each optimiser kappa is the size of the step: Adam divides by the gradient's own scale and the
# sign has none, so that a factor on the gradient would change nothing. The gradients of the two
# losses come apart because the sign is taken of each.


class AlphaOptimizer(abc.ABC):
    """Optimiser that updates alpha in place."""

    def __init__(self, alpha: Mapping[str, Tensor], step_size: Tensor):
        """`step_size` is kappa, (K,)."""
        self._alpha, self._step_size = alpha, step_size

    @abc.abstractmethod
    def step(self, task: Gradients, flops: Gradients) -> None:
        """Make a step against the gradients of the task loss and of lambda times the FLOPs loss."""


class AlphaSgd(AlphaOptimizer):
    """Plain gradient descent: kappa times the gradient."""

    @torch.no_grad()
    def step(self, task: Gradients, flops: Gradients) -> None:
        for space, alpha in self._alpha.items():
            alpha.sub_(per_student(self._step_size, alpha) * (task[space] + flops[space]))


class AlphaAdam(AlphaOptimizer):
    """Adam with a step size for each student (Kingma & Ba 2015, no weight decay)."""

    # While a gradient keeps its size an alpha moves by about kappa a step; where gradients grow, by
    # more: 3.2 kappa when a large one follows small ones, 6.6 after a dozen large ones, and never
    # more than 7.3.

    _BETAS = (0.9, 0.999)
    _EPSILON = 1e-8

    def __init__(self, alpha: Mapping[str, Tensor], step_size: Tensor):
        super().__init__(alpha, step_size)
        self._mean = {space: torch.zeros_like(value) for space, value in alpha.items()}
        self._square = {space: torch.zeros_like(value) for space, value in alpha.items()}
        self._steps = 0

    @torch.no_grad()
    def step(self, task: Gradients, flops: Gradients) -> None:
        self._steps += 1
        first, second = self._BETAS
        for space, alpha in self._alpha.items():
            gradient = task[space] + flops[space]
            mean = self._mean[space].lerp_(gradient, 1 - first)
            square = self._square[space].lerp_(gradient.square(), 1 - second)
            unbiased = mean / (1 - first**self._steps)
            scale = (square / (1 - second**self._steps)).sqrt_().add_(self._EPSILON)
            alpha.sub_(per_student(self._step_size, alpha) * unbiased / scale)


class AlphaSign(AlphaOptimizer):
    """Steps of kappa times the signs of both gradients, of the largest entries only (DAP-BERT)."""

    # Of each gradient the share `kept` of the entries of a space is taken, rounded up, that is
    # largest in absolute value. lambda has no effect on a sign: the FLOPs loss counts or, at lambda
    # 0, does not.

    def __init__(self, alpha: Mapping[str, Tensor], step_size: Tensor, kept: float):
        """`step_size` is kappa, (K,); `kept` is rho, in (0, 1]."""
        super().__init__(alpha, step_size)
        self._kept = kept

    @torch.no_grad()
    def step(self, task: Gradients, flops: Gradients) -> None:
        for space, alpha in self._alpha.items():
            direction = self._signs(task[space]) + self._signs(flops[space])
            alpha.sub_(per_student(self._step_size, alpha) * direction)

    def _signs(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten(1)
        taken = math.ceil(round(self._kept * flat.shape[1], 6))  # 0.07 * 100 is over 7
        dropped = flat.shape[1] - taken
        order = flat.abs().argsort(dim=1, stable=True)  # of equals the first is dropped first
        return flat.sign().scatter(1, order[:, :dropped], 0.0).view_as(gradient)


class DescendingAlpha:
    """Base of alphas that follow gradients; a subclass creates them, and their optimiser if any."""

    alpha: dict[str, Tensor]
    """Leaf tensors (K, layers, ...) of each space; the optimiser holds this dict."""
    optimizer: AlphaOptimizer

    def __init__(self, members: Sequence[Any], problem: Problem, seed: int):
        """The members have R, t, lambda and kappa, named as in `MaskSearch`."""
        self.members, self.method, self.problem = members, members[0], problem
        self.generator = torch.Generator().manual_seed(seed)
        knobs = [(m.flops_weight, m.target_ratio, m.tolerance, m.grad_rescale) for m in members]
        self.flops_weight, self.target_ratio, self.tolerance, self.step_size = (
            torch.tensor(values, dtype=torch.float32, device=problem.device)
            for values in zip(*knobs, strict=True)
        )

    def of(self, index: int) -> dict[str, Tensor]:
        """Alpha of one student on the CPU. Raises FloatingPointError if it is not finite."""
        alpha = {space: value[index].detach().cpu() for space, value in self.alpha.items()}
        if not all(value.isfinite().all() for value in alpha.values()):
            raise FloatingPointError("alpha is nan or infinite after the search")
        return alpha

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Gradients by alpha of the losses of all students, (K,); 0 where none moves it."""
        if not loss.requires_grad:
            return {space: torch.zeros_like(value) for space, value in self.alpha.items()}
        leaves = list(self.alpha.values())
        gradients = torch.autograd.grad(loss.sum(), leaves, materialize_grads=True)
        return dict(zip(self.alpha, gradients, strict=True))

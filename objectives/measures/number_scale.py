"""Scale of a regression's numbers, so that their unit changes no training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_Numbers = TypeVar("_Numbers", Tensor, NDArray[Any])


@dataclass(frozen=True)
class NumberScale:
    """Mean and about the standard deviation of a task's numbers; 0 and 1 change nothing."""

    # Else learning rates, the weight of the hidden states, lambda and kappa would depend on the
    # unit of the numbers, and a new last layer could not reach numbers that are far from 0.

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> Self:
        """Measure it on numbers of any shape. The deviation is a power of two, by which floats are
        divided without rounding."""
        mean, deviation = float(numbers.mean(dtype=float)), float(numbers.std(dtype=float))
        if deviation <= 1e-6 * abs(mean):  # all are equal
            return cls(mean)
        return cls(mean, 2.0 ** round(math.log2(deviation)))

    def standard(self, numbers: _Numbers) -> _Numbers:
        """Subtract the mean and divide by the deviation; classes stay as they are."""
        return numbers if self == NumberScale() else (numbers - self.mean) / self.deviation

    def to_standard(self, model: nn.Module) -> None:
        """Change the last layer so that the model answers standard numbers."""
        self._change(model, 1 / self.deviation, -self.mean / self.deviation)

    def from_standard(self, model: nn.Module) -> None:
        """Change the last layer so that a model of standard numbers answers the task's."""
        self._change(model, self.deviation, self.mean)

    @contextmanager
    def restored(self, model: nn.Module) -> Iterator[None]:
        """Let the model answer the task's numbers meanwhile; then it is as before, to the bit."""
        weights = {name: weight.clone() for name, weight in _head_of(model).items()}
        self.from_standard(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in _head_of(model).items():
                    weight.copy_(weights[name])

    @torch.no_grad()
    def _change(self, model: nn.Module, factor: float, shift: float) -> None:
        if self == NumberScale():
            return
        head = _head_of(model)
        assert head, "a regression ends in a linear layer of one output"
        head["weight"].mul_(factor)
        head["bias"].mul_(factor).add_(shift)


def _head_of(model: nn.Module) -> dict[str, nn.Parameter]:
    head = last_layer(model)
    return {} if head is None else dict(head.named_parameters())


def last_layer(model: nn.Module) -> nn.Linear | None:
    """The linear layer with a bias that gives the one number; None if the model has none."""
    layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    heads = [layer for layer in layers if layer.out_features == 1 and layer.bias is not None]
    return heads[-1] if heads else None

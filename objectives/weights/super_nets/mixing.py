"""Weighted sums: the arithmetic of a super-net."""

from collections.abc import Iterable, Sequence

from torch import Tensor

Number = float | Tensor
"""In [0, 1]; a scalar tensor where it has a gradient."""


def value_of(number: Number) -> float:
    """Without its gradient."""
    return number.item() if isinstance(number, Tensor) else number


def added_up(numbers: Iterable[Number]) -> Number:
    """Their sum; 0 of none."""
    return sum(numbers, 0.0)


def weighed(parts: Iterable[tuple[Tensor, Number]]) -> Tensor:
    """The sum of tensors times their numbers."""
    first, *others = [part if isinstance(n, float) and n == 1 else part * n for part, n in parts]
    return sum(others, first)


def mixed(parts: Sequence[tuple[Tensor, bool]], combination: str, mask_BS1: Tensor) -> Tensor:
    """As `cell_classifier.combined`, of parts of which some are 0, and not there."""
    if combination == "product":
        whole = mask_BS1
        for part, alive in parts:
            whole = whole * (part if alive else part + 1)
        return whole
    added = weighed((part, 1.0) for part, _ in parts)
    return added / max(1, sum(alive for _, alive in parts)) if combination == "mean" else added

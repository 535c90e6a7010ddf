"""The FLOPs budget of a search: the hinge loss that steers into it, the cut that meets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from objectives.architecture import Architecture
from objectives.cost import Flops


def hinge_loss(expected: Tensor, actual: Tensor, target: Tensor, tolerance: Tensor) -> Tensor:
    """+log E above the band [(1 - t) R, (1 + t) R], -log E below, 0 inside (Dong & Yang 2019).

    All arguments and the result are (K,). `expected` is E, differentiable; `actual` is F, the FLOPs
    of the discrete architecture of the moment, which alone decides the side; `target` is R in
    FLOPs; `tolerance` is t, a share of R. On the closed band the loss is 0: the source leaves the
    edge open.
    """
    above = (actual > (1 + tolerance) * target).to(expected.dtype)
    below = (actual < (1 - tolerance) * target).to(expected.dtype)
    return (above - below) * expected.log()


def scheduled_ratio(target_ratio: Tensor, progress: float, ramp: float) -> Tensor:
    """The target ratio in force at `progress` in [0, 1]: from 1 geometrically to R at `ramp`."""
    return target_ratio ** min(1.0, progress / ramp)


def discretise(
    scores: Mapping[str, Tensor],
    cost: Flops,
    *,
    target: float,
    tolerance: float,
    threshold: float,
) -> Architecture:
    """The architecture inside the budget that keeps the units of highest score.

    `scores` maps each searched space to (layers, units), one student's; a space that is missing is
    kept whole. Units above `threshold` are kept if that already lies in the band
    [(1 - t) R, (1 + t) R] around `target` (FLOPs). Otherwise the units are taken in the order of
    their scores, each that still fits below the target. A band that cannot be reached (smaller than
    one unit, or beyond what the searched spaces can save) is missed: the caller compares
    `cost.exact` with the band.
    """
    opened = {space: score > threshold for space, score in scores.items()}
    as_searched = _architecture(opened, cost)
    if abs(cost.exact(as_searched) - target) <= tolerance * target:
        return as_searched

    closed = {space: torch.zeros_like(mask) for space, mask in opened.items()}
    flops = cost.exact(_architecture(closed, cost))
    price = cost.of_one_unit()
    spaces = sorted(scores)
    ranked = torch.cat([scores[space].flatten() for space in spaces]).argsort(
        descending=True, stable=True
    )
    owner = [space for space in spaces for _ in range(scores[space].numel())]
    first = {space: owner.index(space) for space in spaces}
    kept = {space: mask.flatten().tolist() for space, mask in closed.items()}
    for unit in ranked.tolist():
        space = owner[unit]
        if flops + price[space] <= target:
            flops += price[space]
            kept[space][unit - first[space]] = True
    return _architecture(
        {space: torch.tensor(kept[space]).view_as(mask) for space, mask in closed.items()}, cost
    )


def _architecture(masks: Mapping[str, Tensor], cost: Flops) -> Architecture:
    shape = cost.shape

    def rows(space: str, width: int) -> Sequence[Sequence[bool]]:
        if space in masks:
            rows: list[list[bool]] = masks[space].tolist()
            return rows
        return [[True] * width] * shape.layers

    return Architecture.from_masks(rows("heads", shape.heads), rows("ffn", shape.ffn))

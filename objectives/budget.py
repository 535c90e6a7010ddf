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
    their scores, each that still fits below the target; if that ends short of the band, because
    the cheap units are used up or the gap is smaller than a unit, the nearest number of the dearest
    units is taken with which the others fill the band. A band that cannot be reached is missed:
    the caller compares `cost.exact` with it.
    """
    opened = {space: score > threshold for space, score in scores.items()}
    as_searched = _architecture(opened, cost)
    if abs(cost.exact(as_searched) - target) <= tolerance * target:
        return as_searched

    price = cost.of_one_unit()
    closed = {space: torch.zeros_like(mask) for space, mask in opened.items()}
    room = target - cost.exact(_architecture(closed, cost))
    counts = _affordable(scores, price, room)
    dearest = max(scores, key=lambda space: price[space])
    others = {space: score for space, score in scores.items() if space != dearest}
    least = room - tolerance * target
    nearest_first = sorted(
        range(scores[dearest].numel() + 1), key=lambda dear: abs(dear - counts[dearest])
    )
    for dear in nearest_first:
        left = room - dear * price[dearest]
        if left < 0:
            continue
        filled = {**_affordable(others, price, left), dearest: dear}
        if sum(price[space] * count for space, count in filled.items()) >= least:
            counts = filled
            break
    return _architecture({s: _best(score, counts[s]) for s, score in scores.items()}, cost)


def _affordable(
    scores: Mapping[str, Tensor], price: Mapping[str, int], room: float
) -> dict[str, int]:
    """How many units of each space fit into `room` FLOPs, taken by falling score.

    The units of a space cost the same, so that these are the best of each.
    """
    counts = dict.fromkeys(scores, 0)
    ranked = sorted(
        ((value, space) for space, score in scores.items() for value in score.flatten().tolist()),
        key=lambda unit: -unit[0],
    )
    for _, space in ranked:
        if price[space] <= room:
            room -= price[space]
            counts[space] += 1
    return counts


def _best(score: Tensor, count: int) -> Tensor:
    """A mask of the `count` highest scores, of the shape of `score`."""
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask.view(-1)[score.flatten().argsort(descending=True, stable=True)[:count]] = True
    return mask


def _architecture(masks: Mapping[str, Tensor], cost: Flops) -> Architecture:
    shape = cost.shape

    def rows(space: str, width: int) -> Sequence[Sequence[bool]]:
        if space in masks:
            rows: list[list[bool]] = masks[space].tolist()
            return rows
        return [[True] * width] * shape.layers

    return Architecture.from_masks(rows("heads", shape.heads), rows("ffn", shape.ffn))

"""From architecture variables to masks, and where the variables start."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from objectives.architecture import BertShape, units_of


def constant_alpha(
    shape: BertShape, spaces: tuple[str, ...], value: float, device: str
) -> dict[str, Tensor]:
    """Alpha of each space, (layers, *units_of) float32, all at `value`."""
    return {
        space: torch.full((shape.layers, *units_of(shape, space)), value, device=device)
        for space in spaces
    }


def ranked_alpha(
    importance: Mapping[str, Tensor], price: Mapping[str, float], lowest: float, highest: float
) -> dict[str, Tensor]:
    """Alpha from `lowest` to `highest` in the order of importance per FLOP.

    A unit's place on the way is the share of all searched FLOPs that belongs to units of lower
    rank, so that a common shift of all alphas closes FLOPs at an even rate. `importance` maps each
    space to (layers, *units_of), `price` to the FLOPs of one unit; returns the shapes of
    `importance`.
    """
    worth = torch.cat([(value / price[space]).flatten() for space, value in importance.items()])
    flops = torch.cat(
        [torch.full((value.numel(),), float(price[space])) for space, value in importance.items()]
    ).to(worth)
    order = worth.argsort(stable=True)
    below = flops[order].cumsum(0) - flops[order]
    place = torch.empty_like(worth)
    place[order] = below / below.max().clamp_min(1e-12)
    alpha = (lowest + (highest - lowest) * place).split([v.numel() for v in importance.values()])
    return {
        space: part.view_as(value)
        for (space, value), part in zip(importance.items(), alpha, strict=True)
    }


def sigmoid_masks(alpha: Mapping[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """Masks in (0, 1): sigmoid(alpha / temperature), of alpha's shapes."""
    return {space: (value / temperature).sigmoid() for space, value in alpha.items()}


def geometric_temperature(start: float, end: float, progress: float) -> float:
    """From `start` at progress 0 to `end` at 1, by a constant factor a step."""
    return float(start * (end / start) ** progress)


def softmax_masks(alpha: Tensor) -> Tensor:
    """Masks that the heads of a layer share out, (..., heads): heads x softmax(alpha).

    The source report weights the heads by the softmax itself (its eq. 5); times their number, equal
    alphas leave a pretrained layer as it is.
    """
    return alpha.softmax(-1) * alpha.shape[-1]

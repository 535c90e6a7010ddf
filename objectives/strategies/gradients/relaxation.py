"""From architecture variables to masks, and where the variables start."""

from collections.abc import Mapping

import torch
from torch import Tensor


def ranked_alpha(
    importance: Mapping[str, Tensor],
    cost: Mapping[str, float],
    lowest: float,
    highest: float,
    device: str,
) -> dict[str, Tensor]:
    """Alpha from `lowest` to `highest` in the order of importance per cost of a unit; of the shapes
    of `importance`, (layers, *units_of) of each space, on the device.

    A unit's place on the way is the share of the cost of all searched units that belongs to those
    of lower rank, so that a common shift of all alphas lowers the cost at an even rate.
    """
    scores = torch.cat([(value / cost[space]).flatten() for space, value in importance.items()])
    prices = [torch.full((value.numel(),), float(cost[s])) for s, value in importance.items()]
    costs = torch.cat(prices).to(scores)
    order = scores.argsort(stable=True)
    below = costs[order].cumsum(0) - costs[order]
    place = torch.empty_like(scores)
    place[order] = below / below.max().clamp_min(1e-12)
    alpha = (lowest + (highest - lowest) * place).split([v.numel() for v in importance.values()])
    return {
        space: part.view_as(value).to(device)
        for (space, value), part in zip(importance.items(), alpha, strict=True)
    }


def sigmoid_masks(alpha: Mapping[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """Masks in (0, 1): sigmoid(alpha / temperature), of alpha's shapes."""
    return {space: (value / temperature).sigmoid() for space, value in alpha.items()}


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws of Gumbel(0, 1), on the CPU: argmax(log p + noise) falls on i with probability p_i."""
    return -torch.empty(shape).exponential_(generator=generator).log()


def draw_two(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Two places of the last axis, one after the other, without replacement: (..., 2) int64.

    The two largest log p + Gumbel noise (Vieira 2014; Kool et al. 2019): what torch.multinomial
    does, but the draws of one row do not depend on how many rows there are.
    """
    return (probabilities.log() + noise).topk(2, dim=-1).indices


def two_sampled(alpha: Tensor, noise: Tensor, lots: Tensor, temperature: float) -> Tensor:
    """Weights of the candidates on the last axis of alpha: two above 0, which sum to 1.

    Dong & Yang 2019 (TAS), as their code: the two are drawn from softmax((log softmax(alpha) +
    noise) / temperature), without a gradient, and weighted by a softmax of these two. Their own
    draw needs Gumbel noise too: `lots`. Both are of the shape of one student's alpha.
    """
    perturbed = (alpha.log_softmax(-1) + noise) / temperature
    two = draw_two(perturbed.detach().softmax(-1) + 1e-7, lots)
    weights = perturbed.gather(-1, two).softmax(-1).clamp_min(torch.finfo(alpha.dtype).tiny)
    return torch.zeros_like(perturbed).scatter(-1, two, weights)

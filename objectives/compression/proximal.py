"""Proximal steps on groups of weights: a gradient step, then one to fewer groups."""

from typing import Literal

import torch
from torch import Tensor

Prox = Literal["hard", "soft"]

_STEPS = 600


def left(norms: Tensor, threshold: Tensor) -> Tensor:
    """The factor max(1 - t / |w_i|, 0) of each group: the minimiser of |x - w|^2 / 2 + t sum |x_i|
    is w times it (Yuan & Lin 2006). Of groups of one weight it is the soft threshold of L1."""
    return (1 - threshold / norms.clamp_min(torch.finfo(norms.dtype).tiny)).relu()


def descended(
    second: Tensor, towards: Tensor, weight: Tensor, size: int, count: int, prox: Prox
) -> tuple[Tensor, Tensor]:
    """W, (E, width), of least tr(W A W') - 2 tr(W B') with `count` groups of `size` columns that
    are not 0, and which these are, (groups,).

    In the first third of the steps ever fewer groups stay, those of the largest norms: as they are
    ("hard"; none comes back), or shrunk by the threshold that leaves so many ("soft": the end is
    the group lasso at the least lambda with so many groups).
    """
    kept = torch.ones(weight.shape[1] // size, dtype=torch.bool, device=weight.device)
    rate = 1 / (2 * float(torch.linalg.eigvalsh(second)[-1]))  # never overshoots
    for step in range(_STEPS):
        number = count + int((len(kept) - count) * max(0.0, 1 - 3 * step / _STEPS))
        weight = weight - 2 * rate * (weight @ second - towards)
        norms = weight.unflatten(1, (-1, size)).square().sum((0, 2)).sqrt()
        if prox == "hard":
            norms = norms * kept
        order = norms.argsort(descending=True)
        kept = torch.zeros_like(kept).index_fill_(0, order[:number], True)
        share = kept.to(norms)
        if prox == "soft" and number < len(kept):
            share = share * left(norms, norms[order[number]])
        weight = weight * share.repeat_interleave(size)
    return weight, kept

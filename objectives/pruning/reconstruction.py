"""Fit the weights of kept units so that each block's output stays what it was.

Block after block, attention and FFN: the weights of the output projection are those with which the
sum before the LayerNorm comes nearest to that of the unpruned model on the same text, by linear
least squares. A unit has one factor for all its weights (Kwon et al. 2022, 4.3), or all are free.
"""

# Unlike the paper's code: every block is fitted, heads without an intercept, the damping is that of
# the equations themselves, and a block whose factors grow too large is left out, not all after it.

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.problem import Problem
from objectives.pruning.side_by_side import RECONSTRUCTION, Fit, Pair, side_by_side
from objectives.students.bert.architecture import BertArchitecture
from objectives.text.data import Batch

# Proximal steps on groups of weights: a gradient step, then one to fewer groups.

Prox = Literal["hard", "soft"]

_STEPS = 600


def shrinkage(norms: Tensor, threshold: Tensor) -> Tensor:
    """Factor max(1 - t / |w_i|, 0) of each group: the proximal step of t sum |w_i| (Yuan & Lin)."""
    return (1 - threshold / norms.clamp_min(torch.finfo(norms.dtype).tiny)).relu()


def descended(
    second: Tensor, towards: Tensor, weight: Tensor, size: int, count: int, prox: Prox
) -> tuple[Tensor, Tensor]:
    """W, (E, width), of least tr(W A W' - 2 W B') with `count` groups of columns, and which."""
    # In the first third of the steps ever fewer groups stay, those of the largest norms: as they
    # are ("hard"; none comes back), or shrunk by the threshold that leaves them ("soft": the end
    # is the group lasso at the least lambda with this many groups).
    staying = torch.ones(weight.shape[1] // size, dtype=torch.bool, device=weight.device)
    rate = 1 / (2 * float(torch.linalg.eigvalsh(second)[-1]))  # never overshoots
    for step in range(_STEPS):
        number = count + int((len(staying) - count) * max(0.0, 1 - 3 * step / _STEPS))
        weight = weight - 2 * rate * (weight @ second - towards)
        norms = weight.unflatten(1, (-1, size)).square().sum((0, 2)).sqrt()
        if prox == "hard":
            norms = norms * staying
        order = norms.argsort(descending=True)
        staying = torch.zeros_like(staying).index_fill_(0, order[:number], True)
        share = staying.to(norms)
        if prox == "soft" and number < len(staying):
            share = share * shrinkage(norms, norms[order[number]])
        weight = weight * share.repeat_interleave(size)
    return weight, staying


_BATCH_SIZE = 32
_DAMPING = 1.0
"""Weight of the distance from factors of 1 beside the summed squared error."""
_LARGEST = 10.0
"""Largest factor; a block that exceeds it is left unchanged."""


@torch.no_grad()
def reconstructed(problem: Problem, units: BertArchitecture) -> BertForSequenceClassification:
    """A copy of the student: output projections 0 at closed units, scaled at the others."""
    # The alpha split is the text. For architectures that cut heads and FFN neurons alone.
    sizes = {"heads": problem.shape.head_dim, "ffn": 1}

    def scaled(fit: Fit, weight: Tensor) -> Tensor:
        left, size = weight.double(), sizes[fit.space]
        lacks = ((fit.towards - left @ fit.second) * left).sum(0)
        factors = _factors(fit.second * (left.T @ left), lacks, len(lacks) // size)
        return weight * factors.repeat_interleave(size).to(weight)

    batches = problem.alpha.in_order(_BATCH_SIZE, problem.device)
    return _refitted(problem, units, batches, [RECONSTRUCTION], scaled)


@torch.no_grad()
def solved(
    problem: Problem,
    architecture: BertArchitecture,
    batches: Sequence[Batch],
    pairs: Sequence[Pair],
    damping: float,
) -> BertForSequenceClassification:
    """Solve for weights of least error, held at the unpruned ones, where rows say nothing."""

    def refit(fit: Fit, weight: Tensor) -> Tensor:
        return least(fit.second, fit.towards, weight.double(), damping).to(weight)

    return _refitted(problem, architecture, batches, pairs, refit)


@torch.no_grad()
def stepped(
    problem: Problem,
    architecture: BertArchitecture,
    batches: Sequence[Batch],
    pairs: Sequence[Pair],
    damping: float,
    prox: Prox,
) -> tuple[BertArchitecture, BertForSequenceClassification]:
    """Choose as many units of each block by proximal steps, and take the weights these leave."""
    counts = {"heads": architecture.heads_per_layer, "ffn": architecture.ffn_per_layer}
    sizes = {"heads": problem.shape.head_dim, "ffn": 1}
    masks: dict[str, list[list[bool]]] = {space: [] for space in counts}

    def refit(fit: Fit, weight: Tensor) -> Tensor:
        near, count = weight.double(), counts[fit.space][fit.layer]
        moments = pulled(fit.second, fit.towards, near, damping)
        fitted, staying = descended(*moments, near, sizes[fit.space], count, prox)
        masks[fit.space].append(staying.tolist())
        return fitted.to(weight)

    full = BertArchitecture.full(problem.shape)
    student = _refitted(problem, full, batches, pairs, refit)
    return BertArchitecture.from_masks(problem.shape, masks), student


def _refitted(
    problem: Problem,
    architecture: BertArchitecture,
    batches: Iterable[Batch],
    pairs: Sequence[Pair],
    refit: Callable[[Fit, Tensor], Tensor],
) -> BertForSequenceClassification:
    """A copy of the student: output projections 0 at closed units, `refit` of the rest."""
    masks = architecture.masks(problem.shape, ("heads", "ffn"))
    channels, device = {"heads": problem.shape.head_dim, "ffn": 1}, problem.device
    columns = {
        space: [torch.tensor(row, device=device).repeat_interleave(channels[space]) for row in rows]
        for space, rows in masks.items()
    }
    student = copy.deepcopy(problem.student)
    for fit in side_by_side(problem.student, student, batches, pairs, columns):
        columns_kept = columns[fit.space][fit.layer]
        fit.weight.mul_(columns_kept)
        if columns_kept.any():
            fit.weight[:, columns_kept] = refit(fit, fit.weight[:, columns_kept])
    return student


def least(second: Tensor, towards: Tensor, near: Tensor, damping: float) -> Tensor:
    """Weights of least error, (E, width), with a pull towards the weights `near`."""
    # `second` is A, `towards` B of the least squares.
    damped, pull = pulled(second, towards, near, damping)
    weight: Tensor = torch.linalg.solve(damped, pull.T).T
    return weight


def pulled(second: Tensor, towards: Tensor, near: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """Least squares' A and B with that pull."""
    damped = held(second, damping)
    return damped, towards + (damped - second).diagonal() * near


def held(second: Tensor, damping: float) -> Tensor:
    """Second moments, with this share of their mean added to each: (width, width)."""
    added = damping * second.diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny)
    return second + added * torch.eye(len(second)).to(second)


def _factors(products: Tensor, towards: Tensor, units: int) -> Tensor:
    """Factors of the kept units of a block, (units,) float64."""
    # With C the contributions of the units to the sum, one column each, and e what the sum lacks
    # while all factors are 1, their change is (C'C + damping)^-1 C'e. `products` is C'C and
    # `towards` C'e, with a row for each dimension of a unit.
    size = len(towards) // units
    gram = products.view(units, size, units, size).sum((1, 3))
    error = towards.view(units, size).sum(1)
    damping = _DAMPING * torch.eye(units, dtype=gram.dtype, device=gram.device)
    factors = 1 + torch.linalg.solve(gram + damping, error)
    return factors if factors.abs().max() <= _LARGEST else torch.ones_like(factors)

"""What a unit is worth: Fisher information of its mask (Kwon et al. 2022).

Two kinds of squares. Of the *loss* on the labels: the empirical Fisher information, as the paper
has it; a sequence that the model is sure of counts for next to nothing. Of the *logits*: the
diagonal of the Gauss-Newton matrix of their squared error, how far the answer moves when the unit
closes, whether or not it was right; it needs no labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.architecture import BertShape, units_of
from objectives.data import Batch, Split
from objectives.losses import sequence_losses
from objectives.population import Population
from objectives.problem import Problem

Squares = Literal["loss", "logits"]

_BATCH_SIZE = 32


def squared_gradients(
    population: Population, batch: Batch, masks: Mapping[str, Tensor], squares: Squares
) -> dict[str, Tensor]:
    """Mean over the batch of the squared gradients at these masks: of each space, of their shape.

    `masks` maps each space to (K, layers, *units_of), and so does the result. Gradients are taken
    for each sequence, not for the mean of a batch, in which they would cancel. Squares of the
    logits are summed over the logits' deviations from their mean (a shift of all changes no
    answer); each sequence stands for one axis of these, so that more than two outputs cost no more
    than two.
    """
    rows = len(batch.rows)
    of_each = {
        space: mask.detach()[:, None].expand(-1, rows, *mask.shape[1:]).clone().requires_grad_()
        for space, mask in masks.items()
    }
    logits = population.logits(batch, of_each)
    values = (
        sequence_losses(logits, batch.labels)
        if squares == "loss"
        else (logits * _directions(batch.rows, logits.shape[-1]).to(logits)).sum(-1)
    )
    gradients = torch.autograd.grad(values.sum(), list(of_each.values()))
    return {
        space: gradient.square().mean(1) for space, gradient in zip(of_each, gradients, strict=True)
    }


def fisher_importance(
    model: BertForSequenceClassification,
    split: Split,
    shape: BertShape,
    spaces: tuple[str, ...],
    squares: Squares,
    device: str,
) -> dict[str, Tensor]:
    """Mean of the squared gradients over the rows, at open masks: (layers, *units_of) each.

    With the loss, half of it estimates how much the task's loss rises when the unit closes.
    """
    population = Population.of([model])
    for weight in population.weights.values():
        weight.requires_grad_(False)
    masks = {
        space: torch.ones(1, shape.layers, *units_of(shape, space), device=device)
        for space in spaces
    }
    total = {space: torch.zeros_like(mask[0]) for space, mask in masks.items()}
    for batch in split.in_order(_BATCH_SIZE, device):
        share = len(batch.rows) / len(split)
        for space, square in squared_gradients(population, batch, masks, squares).items():
            total[space] += share * square[0]
    return total


def importance_of_student(
    problem: Problem, spaces: tuple[str, ...], squares: Squares
) -> dict[str, Tensor]:
    """The same for the student of a problem on its alpha split; worked out once a launch."""
    key = ("fisher importance", spaces, squares)
    if key not in problem.memory:
        problem.memory[key] = fisher_importance(
            problem.student,
            problem.alpha,
            problem.cost.shape,
            spaces,
            squares,
            problem.device,
        )
    importance: dict[str, Tensor] = problem.memory[key]
    return importance


def _directions(rows: Tensor, outputs: int) -> Tensor:
    """For each sequence one axis of the space of its logits' differences, in turn: (B, C)."""
    if outputs == 1:
        return torch.ones(len(rows), 1, device=rows.device)
    centred = torch.eye(outputs, device=rows.device) - 1 / outputs
    axes = torch.linalg.qr(centred).Q.T[:-1] * (outputs - 1) ** 0.5
    chosen: Tensor = axes[rows % len(axes)]
    return chosen

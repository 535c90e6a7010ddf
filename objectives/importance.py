"""What a unit is worth: Fisher information of its mask (Kwon et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.architecture import BertShape, units_of
from objectives.data import Batch, Split
from objectives.losses import sequence_losses
from objectives.population import Population
from objectives.problem import Problem

_BATCH_SIZE = 32


def squared_gradients(
    population: Population, batch: Batch, masks: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Mean over the batch of (d loss / d mask)^2 at these masks: of each space, of their shape.

    `masks` maps each space to (K, layers, *units_of), and so does the result. The loss is the
    task's on the labels. Gradients are taken for each sequence, not for the mean of a batch, in
    which they would cancel.
    """
    rows = len(batch.rows)
    of_each = {
        space: mask.detach()[:, None].expand(-1, rows, *mask.shape[1:]).clone().requires_grad_()
        for space, mask in masks.items()
    }
    loss = sequence_losses(population.logits(batch, of_each), batch.labels).sum()
    gradients = torch.autograd.grad(loss, list(of_each.values()))
    return {
        space: gradient.square().mean(1) for space, gradient in zip(of_each, gradients, strict=True)
    }


def fisher_importance(
    model: BertForSequenceClassification,
    split: Split,
    shape: BertShape,
    spaces: tuple[str, ...],
    device: str,
) -> dict[str, Tensor]:
    """Mean over the rows of (d loss / d mask)^2 at open masks: (layers, *units_of) of each space.

    It is the diagonal of the empirical Fisher information of the masks, so half of it estimates how
    much the task's loss rises when the unit closes.
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
        for space, square in squared_gradients(population, batch, masks).items():
            total[space] += share * square[0]
    return total


def importance_of_student(problem: Problem, spaces: tuple[str, ...]) -> dict[str, Tensor]:
    """The same for the student of a problem on its alpha split; worked out once a launch."""
    key = ("fisher importance", spaces)
    if key not in problem.memory:
        problem.memory[key] = fisher_importance(
            problem.student, problem.alpha, problem.cost.shape, spaces, problem.device
        )
    importance: dict[str, Tensor] = problem.memory[key]
    return importance

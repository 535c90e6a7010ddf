"""Scores of units: Fisher information of their masks (Kwon et al. 2022)."""

# Two kinds of squares. Of the *loss* on the labels: the empirical Fisher information, as the paper
# has it; a sequence that the model is sure of counts for next to nothing. Of the *logits*: the
# diagonal of the Gauss-Newton matrix of their squared error, how far the answer moves when the unit
# closes, whether or not it was right; it needs no labels.

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from objectives.measures.budget import ranks_of
from objectives.measures.cost import Cost
from objectives.problem import Problem
from objectives.students.bert.architecture import units_of
from objectives.students.bert.cutting import shape_of
from objectives.text.data import Batch, Split
from objectives.training.losses import sequence_losses
from objectives.training.population import Population

Scores = Mapping[str, Tensor]
"""Scores of each space (layers, *units_of(shape, space)), on the CPU; higher stays."""


def per_cost(scores: Scores, cost: Cost, power: float = 1.0) -> dict[str, Tensor]:
    """Divide each score by this power of the cost of a unit of its kind."""
    of_one = cost.of_one_unit()
    return {space: value / of_one[space] ** power for space, value in scores.items()}


def evenly(scores: Scores) -> dict[str, Tensor]:
    """Rank units in each set of a layer, and give all sets equal shares; ties go to the first."""
    return {s: (v.shape[-1] - 1 - ranks_of(v)).double() / v.shape[-1] for s, v in scores.items()}


Squares = Literal["loss", "logits"]

RowGradients = Iterator[tuple[str, Tensor]]
"""Gradients of each searched space, batch by batch: (B, layers, *units_of)."""


def row_gradients(
    population: Population, batch: Batch, masks: Mapping[str, Tensor], squares: Squares
) -> dict[str, Tensor]:
    """Gradients of each sequence, which would cancel in a mean: (K, B, layers, *units_of)."""
    # The logits' are those of one axis of their deviations from their mean (a shift of all changes
    # no answer), another for each sequence in turn, scaled so that the squares of a few sequences
    # stand for all axes.
    rows = len(batch.rows)
    of_each = {
        space: mask.detach()[:, None].expand(-1, rows, *mask.shape[1:]).clone().requires_grad_()
        for space, mask in masks.items()
    }
    logits = population.logits(batch, row_masks=of_each)
    values = (
        sequence_losses(logits, batch.labels) if squares == "loss" else along_axes(logits, batch)
    )
    gradients = torch.autograd.grad(values.sum(), list(of_each.values()))
    return dict(zip(of_each, gradients, strict=True))


def gradients_of_rows(
    model: BertForSequenceClassification,
    split: Split,
    masks: Mapping[str, Tensor],
    squares: Squares,
    device: str,
) -> RowGradients:
    """Gradients of all rows at these masks, (1, layers, *units_of), a batch at a time."""
    population = Population.of([model])
    for weight in population.weights.values():
        weight.requires_grad_(False)
    for batch in split.in_order(split.rows_with_gradients, device):
        for space, gradient in row_gradients(population, batch, masks, squares).items():
            yield space, gradient[0]


def mean_over_rows(
    gradients: RowGradients, rows: int, of_gradients: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Mean over this many rows of a function of their gradients, on the CPU."""
    total: dict[str, Tensor] = {}
    for space, gradient in gradients:
        part = of_gradients(gradient).sum(0) / rows
        total[space] = total[space] + part if space in total else part
    return {space: value.cpu() for space, value in total.items()}


def _mean_products(gradients: RowGradients, rows: int) -> dict[str, Tensor]:
    """Mean over this many rows of the products of any two gradients of a layer, on the CPU."""
    # (layers, units, units) are large, so a layer is added at a time, in place.
    total: dict[str, Tensor] = {}
    for space, gradient in gradients:
        _, layers, units = gradient.shape
        if space not in total:
            total[space] = gradient.new_zeros(layers, units, units)
        for block, of_layer in zip(total[space], gradient.unbind(1), strict=True):
            block += torch.einsum("ri,rj->ij", of_layer, of_layer) / rows
    return {space: blocks.cpu() for space, blocks in total.items()}


def first_order_of_student(problem: Problem, spaces: tuple[str, ...]) -> dict[str, Tensor]:
    """Mean |dL/dmask| of the student over the alpha split (Michel et al. 2019, eq. 2)."""
    mean = partial(mean_over_rows, of_gradients=Tensor.abs)
    return _worked_out_once(problem, "first order", spaces, "loss", mean)


def importance_of_student(
    problem: Problem, spaces: tuple[str, ...], squares: Squares
) -> dict[str, Tensor]:
    """Mean squared gradients of the student's masks on the alpha split, (layers, *units_of)."""
    # With the loss, half of it estimates how much the task's loss rises when the unit closes.
    mean = partial(mean_over_rows, of_gradients=Tensor.square)
    return _worked_out_once(problem, "fisher importance", spaces, squares, mean)


def scores_per_cost(
    problem: Problem, spaces: tuple[str, ...], squares: Squares
) -> dict[str, Tensor]:
    """Importance over the cost of a unit of its kind."""
    return per_cost(importance_of_student(problem, spaces, squares), problem.budget.cost)


def fisher_blocks_of_student(problem: Problem, spaces: tuple[str, ...]) -> dict[str, Tensor]:
    """Mean products of two gradients of the loss, (layers, units, units) of heads or ffn."""
    # Its diagonal is `importance_of_student`.
    return _worked_out_once(problem, "fisher blocks", spaces, "loss", _mean_products)


def _worked_out_once(
    problem: Problem,
    name: str,
    spaces: tuple[str, ...],
    squares: Squares,
    mean: Callable[[RowGradients, int], dict[str, Tensor]],
) -> dict[str, Tensor]:
    # Without its neighbours a layer is fed what it never saw, until it has been trained: what its
    # units are worth shows in the teacher.
    layers = problem.student_layers
    model = problem.student if layers is None else problem.teacher

    def work_out() -> dict[str, Tensor]:
        shape, device = shape_of(model.config), problem.device
        opened = {s: torch.ones(1, shape.layers, *units_of(shape, s)).to(device) for s in spaces}
        gradients = gradients_of_rows(model, problem.alpha, opened, squares, device)
        means = mean(gradients, len(problem.alpha))
        chosen_layers = slice(None) if layers is None else list(layers)
        return {space: scores[chosen_layers] for space, scores in means.items()}

    return problem.once((name, spaces, squares), work_out)


def along_axes(logits: Tensor, batch: Batch) -> Tensor:
    """Project the logits of each sequence, (..., B, C), on its axis of `directions`: (..., B)."""
    axes = directions(batch.rows, logits.shape[-1], several=batch.labels.ndim == 2)
    return (logits * axes.to(logits)).sum(-1)


def gradients_behind(
    modules: Sequence[nn.Module], model: BertForSequenceClassification, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Sequence[Tensor], Sequence[Tensor]]]:
    """Batches, inputs of these modules, and gradients of the logits, `along_axes`, by outputs."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = inputs[0].detach(), output.requires_grad_()

    hooks = [module.register_forward_hook(note) for module in modules]
    try:
        for batch in batches:
            values = along_axes(model(**batch.inputs).logits, batch).sum()
            entering, leaving = zip(*(seen[module] for module in modules), strict=True)
            yield batch, entering, torch.autograd.grad(values, leaving)
    finally:
        for hook in hooks:
            hook.remove()


def directions(rows: Tensor, outputs: int, *, several: bool = False) -> Tensor:
    """Axis of each sequence, in turn, in the space of differences between logits: (B, C)."""
    axes = _axes(outputs, several, rows.device)
    return axes[rows % len(axes)]


@cache
def _axes(outputs: int, several: bool, device: torch.device) -> Tensor:
    """Orthonormal axes, (n, C), times the root of n: the square along one stands for all."""
    if several or outputs == 1:  # labels that are predicted separately
        return torch.eye(outputs, device=device) * math.sqrt(outputs)
    centred = torch.eye(outputs) - 1 / outputs
    axes: Tensor = torch.linalg.qr(centred).Q.T[:-1] * (outputs - 1) ** 0.5
    return axes.to(device)

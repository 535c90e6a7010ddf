"""Magnitude pruning: the units with the smallest weights go (Han et al. 2015, in groups).

A unit's weights are those that cutting it removes. The mean of what they are worth lets units of
different sizes compete: of w^2 (its root), or of what the loss is thought to change by without a
weight, to the first or the second order:"""

#     magnitude    w^2
#     sensitivity  |g w|            g the gradient of the task's loss on the alpha split
#     curvature    h w^2 / 2        h the diagonal of its Hessian (optimal brain damage, LeCun
#                                   1990), by the empirical Fisher information
#
# With `sparsity` single weights go as well, by the same scores: they are 0, and stay 0 in training.

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from objectives.errors import ShareBelowOne, UserError
from objectives.problem import Problem
from objectives.pruning.one_shot import ScopedOneShot
from objectives.students.bert.architecture import BertArchitecture, BertShape, units_of
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import AXES, LINEARS
from objectives.students.bert.pretrained import Classifier
from objectives.training.computed_weights import unit_parts
from objectives.training.losses import sequence_losses
from objectives.training.population import Population

Criterion = Literal["magnitude", "sensitivity", "curvature"]


@dataclass(frozen=True, kw_only=True)
class MagnitudePruning(ScopedOneShot):
    """Remove the units with the smallest weights."""

    criterion: Criterion = "magnitude"
    """Score of a weight w of gradient g and curvature h: "magnitude", w^2; "sensitivity", |g w|; or
    "curvature", h w^2 / 2."""
    sparsity: ShareBelowOne = 0.0
    """Share of the weights left in the layers that are set to 0, those worth least. In [0, 1).
    Nothing becomes faster or smaller by it: files are dense, no engine has kernels for zeros."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sparsity and self.has_binary_weights:
            raise UserError(
                f"MagnitudePruning.sparsity is {self.sparsity}, but binary weights have no 0; "
                "leave it out, or set weight_bits=2"
            )

    def scores_of_units(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Mean score of each unit's weights; for magnitude its root."""
        scores = means_over_units(weight_scores(problem, self.criterion), problem.shape)
        root = 0.5 if self.criterion == "magnitude" else 1.0
        return {space: scores[space] ** root for space in self.spaces}

    @property
    def keeps_zeros(self) -> bool:
        return self.sparsity > 0

    def lr_scale(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        return max(super().lr_scale(problem, architecture), self.sparsity)

    def student(self, problem: Problem, architecture: BertArchitecture, seed: int) -> Classifier:
        """Student of the problem; with `sparsity` cut, its weights of least score 0."""
        student = super().student(problem, architecture, seed)
        if not self.sparsity:
            return student
        state = student.state_dict()
        worth = {**state, **weight_scores(problem, self.criterion)}
        model, scored = (cut(values, student.config, architecture) for values in (state, worth))
        weights, scored_by = dict(model.named_parameters()), dict(scored.named_parameters())
        pairs = [(weights[n].data, scored_by[n].data) for n in names(problem.shape) if n in weights]
        scores = torch.cat([score.flatten() for _, score in pairs])
        least = scores.topk(round(self.sparsity * len(scores)), largest=False).indices
        stays = torch.ones_like(scores, dtype=torch.bool).index_fill_(0, least, False)
        parts = stays.split([weight.numel() for weight, _ in pairs])
        for (weight, _), weights in zip(pairs, parts, strict=True):
            weight.mul_(weights.view_as(weight))
        return model


def weight_scores(problem: Problem, criterion: Criterion) -> dict[str, Tensor]:
    """Scores of the weights of the student's layers, by name; their gradients are made once."""
    weights = {name: problem.student.get_parameter(name).detach() for name in names(problem.shape)}
    if criterion == "magnitude":
        return {name: weight.square() for name, weight in weights.items()}
    first, second = problem.once("gradients of weights", lambda: _gradients(problem))
    if criterion == "sensitivity":
        return {name: (first[name] * weight).abs() for name, weight in weights.items()}
    return {name: second[name] * weight.square() / 2 for name, weight in weights.items()}


def names(shape: BertShape) -> list[str]:
    """Names of the weights of the layers."""
    in_layer = [f"{linear.name}.weight" for linear in LINEARS]
    return [f"bert.encoder.layer.{n}.{name}" for n in range(shape.layers) for name in in_layer]


def _gradients(problem: Problem) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients of the mean loss on the alpha split, and mean squares of those of its rows."""
    population, rows = Population.of([problem.student]), len(problem.alpha)
    weights = {name: population.weights[name] for name in names(problem.shape)}
    first, second = ({n: torch.zeros_like(w[0]) for n, w in weights.items()} for _ in range(2))
    for batch in problem.alpha.in_order(1, problem.device):  # the square of each row's own gradient
        loss = sequence_losses(population.logits(batch), batch.labels).sum()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for name, (gradient,) in zip(weights, gradients, strict=True):
            first[name] += gradient / rows
            second[name] += gradient.square() / rows
    return first, second


def means_over_units(scores: Mapping[str, Tensor], shape: BertShape) -> dict[str, Tensor]:
    """Mean `weight_scores` of what each unit takes with it, (layers, *units_of) on the CPU."""
    alone = {name: score[None] for name, score in scores.items()}

    def mean(layer: int, space: str) -> Tensor:
        units, sets = units_of(shape, space), [AXES[space]]
        if space == "input_qkv":
            units, sets = units[1:], [(axis,) for axis in AXES[space]]
        means = []
        for axes in sets:
            parts = unit_parts(alone, layer, axes, prod(units))
            total = torch.stack([part.sum((0, 2, 3)) for part in parts]).sum(0)
            means.append(total.view(units) / sum(part[0, 0].numel() for part in parts))
        return torch.stack(means) if len(sets) > 1 else means[0]

    layers = range(shape.layers)
    return {s: torch.stack([mean(layer, s) for layer in layers]).cpu() for s in AXES}

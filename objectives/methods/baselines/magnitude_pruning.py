"""Magnitude pruning: the units with the smallest weights go (Han et al. 2015, in groups).

A unit's weights are those that cutting it removes. Their root mean square lets units of different
sizes compete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.problem import Problem
from objectives.strategies.one_shot import ScopedOneShot
from objectives.students.bert.architecture import BertShape, units_of
from objectives.students.bert.linears import AXES, LINEARS


@dataclass(frozen=True, kw_only=True)
class MagnitudePruning(ScopedOneShot):
    """The units with the smallest weights go."""

    def scores_of_units(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """The root mean square of each unit's weights."""
        del seed
        squares = mean_squares(problem.student, problem.shape)
        return {space: squares[space].sqrt() for space in self.spaces}


@torch.no_grad()
def mean_squares(model: BertForSequenceClassification, shape: BertShape) -> dict[str, Tensor]:
    """Mean square of the weights that a unit of each space takes with it: (layers, *units_of)."""
    layers = [_of_layer(layer, shape) for layer in model.bert.encoder.layer]
    return {space: torch.stack([layer[space] for layer in layers]).cpu() for space in layers[0]}


def _of_layer(layer: torch.nn.Module, shape: BertShape) -> dict[str, Tensor]:
    squares = {linear: layer.get_parameter(f"{linear.name}.weight").square() for linear in LINEARS}

    def mean(axes: Sequence[str], *units: int) -> Tensor:
        """Over the weights of each of the `units` along these axes."""
        along = [
            (square, 1 - axis)
            for linear, square in squares.items()
            for axis, name in enumerate((linear.outputs, linear.inputs))
            if name in axes
        ]
        sums = [square.sum(others) for square, others in along]
        by_unit = torch.stack(sums).sum(0).view(*units, -1)
        return by_unit.sum(-1) / (by_unit.shape[-1] * sum(square.shape[o] for square, o in along))

    return {
        space: torch.stack([mean([axis], shape.hidden) for axis in axes])
        if space == "input_qkv"
        else mean(axes, *units_of(shape, space))
        for space, axes in AXES.items()
    }

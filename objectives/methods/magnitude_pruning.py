"""Magnitude pruning: the units with the smallest weights go (Han et al. 2015, in groups).

A unit's weights are those that cutting it removes. Their root mean square lets units of different
sizes compete.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.bert.architecture import BertShape
from objectives.problem import Problem
from objectives.search.one_shot import ScopedOneShot


@dataclass(frozen=True, kw_only=True)
class MagnitudePruning(ScopedOneShot):
    """The units with the smallest weights go."""

    def worth_of_units(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """The root mean square of each unit's weights."""
        del seed
        squares = mean_squares(problem.student, problem.cost.shape)
        return {space: squares[space].sqrt() for space in self.spaces}


@torch.no_grad()
def mean_squares(model: BertForSequenceClassification, shape: BertShape) -> dict[str, Tensor]:
    """Mean square of the weights that a unit of each space takes with it: (layers, *units_of)."""
    layers = [_of_layer(layer, shape) for layer in model.bert.encoder.layer]
    return {space: torch.stack([layer[space] for layer in layers]).cpu() for space in layers[0]}


def _of_layer(layer: torch.nn.Module, shape: BertShape) -> dict[str, Tensor]:
    heads, size, hidden = shape.heads, shape.head_dim, shape.hidden

    def squares(name: str) -> Tensor:
        weight: Tensor = layer.get_parameter(f"{name}.weight")
        return weight.square()

    query, key, value = (squares(f"attention.self.{name}") for name in ("query", "key", "value"))
    output = squares("attention.output.dense").T  # (heads x size, hidden), as the others
    of_rows = {
        name: weight.view(heads, size, hidden).sum(-1)
        for name, weight in (("query", query), ("key", key), ("value", value), ("output", output))
    }
    inputs = torch.stack([query.sum(0), key.sum(0), value.sum(0)])
    neurons = squares("intermediate.dense").sum(1) + squares("output.dense").sum(0)
    width = heads * size
    return {
        "heads": sum(of_rows.values()).sum(-1) / (4 * size * hidden),  # type: ignore[union-attr]
        "ffn": neurons / (2 * hidden),
        "qk": (of_rows["query"] + of_rows["key"]) / (2 * hidden),
        "v": (of_rows["value"] + of_rows["output"]) / (2 * hidden),
        "input": inputs.sum(0, keepdim=True) / (3 * width),
        "input_qkv": inputs / width,
    }

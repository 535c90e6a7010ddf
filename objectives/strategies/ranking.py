"""What is done to the scores of units before the highest of them stay."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from objectives.measures.budget import places, units_that_fit
from objectives.measures.cost import Cost

Scores = Mapping[str, Tensor]
"""Of each space (layers, *units_of(shape, space)), on the CPU; higher stays."""


def per_cost(scores: Scores, cost: Cost, power: float = 1.0) -> dict[str, Tensor]:
    """Each score over what a unit of its kind costs, to this power."""
    of_one = cost.of_one_unit()
    return {space: value / of_one[space] ** power for space, value in scores.items()}


def evenly(scores: Scores) -> dict[str, Tensor]:
    """The same order within each set of a layer, and equal shares of all sets: a unit gives way
    when its share of the set does, whatever the others score. Of equals the first scores highest.
    """
    return {
        space: (value.shape[-1] - 1 - places(value)).double() / value.shape[-1]
        for space, value in scores.items()
    }


def redistributed(scores: Scores, measured: Scores, share: float) -> dict[str, Tensor]:
    """Scores in the same order in each layer, of which a share is measured anew.

    Both are taken as shares of the sum over all units. What was measured decides how much each
    layer has, and its values go to the units of the layer in the order of `scores`.
    """
    fresh, found = _shares(measured), {}
    for space, value in _shares(scores).items():
        falling = fresh[space].sort(dim=-1, descending=True).values
        found[space] = value.lerp(falling.gather(-1, places(value)), share)
    return found


def _shares(scores: Scores) -> dict[str, Tensor]:
    total = sum(float(value.sum()) for value in scores.values())
    return {space: value / total for space, value in scores.items()}


def largest_fall(scores: Scores, cost: Cost, low: float, high: float) -> float:
    """The threshold below which scores fall most, among the units that fit between two costs."""
    few, many = (units_that_fit(scores, cost, limit=limit) for limit in (low, high))
    between = torch.cat([value[many[space] & ~few[space]] for space, value in scores.items()])
    values = between.double().clamp_min(1e-300).sort(descending=True).values  # no quotient by 0
    falls = values[:-1] / values[1:]
    return float(values[falls.argmax() + 1]) if len(falls) else math.inf

"""What is done to the scores of units before the highest of them stay."""

from collections.abc import Mapping

from torch import Tensor

from objectives.measures.budget import places
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

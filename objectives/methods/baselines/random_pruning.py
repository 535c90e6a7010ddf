"""Random pruning: units drawn at random. What every method has to beat.

With scope "layer" all layers keep the same share: the uniform architecture."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from objectives.errors import NonNegativeInt, check_ranges
from objectives.problem import Problem
from objectives.pruning.one_shot import ScopedOneShot
from objectives.students.bert.architecture import SPACES, units_of


@dataclass(frozen=True, kw_only=True)
class RandomPruning(ScopedOneShot):
    """Remove units drawn at random."""

    searchable: ClassVar[tuple[str, ...]] = SPACES

    draw: NonNegativeInt = 0
    """Number of the draw, beside the seed of the study. >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = self.scope == "global" or "layers" not in self.spaces
        check_ranges(self, scope=(good, "'global' if spaces has 'layers': a layer is one unit"))

    def scores_of_units(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """A number for each unit, uniform in [0, 1); the same at every budget."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + self.draw)
        shape = problem.shape
        sizes = {space: (shape.layers, *units_of(shape, space)) for space in self.spaces}
        return {space: torch.rand(size, generator=generator) for space, size in sizes.items()}

"""Random pruning: units drawn by lot. What every method has to beat.

With scope "layer" all layers keep the same share: the uniform architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from objectives.architecture import units_of
from objectives.errors import check_ranges, one_of
from objectives.one_shot import OneShot, evenly
from objectives.problem import Problem

Scope = Literal["global", "layer"]


@dataclass(frozen=True, kw_only=True)
class RandomPruning(OneShot):
    """Units drawn by lot."""

    draw: int = 0
    """Which lot, beside the seed of the study. >= 0."""
    scope: Scope = "global"
    """Who competes: all units of the model, or those of each layer for equal shares."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self, {"draw": (self.draw >= 0, ">= 0"), **one_of(self, {"scope": get_args(Scope)})}
        )

    def worth(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """A number for each unit, uniform in [0, 1); the same at every budget."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + self.draw)
        shape = problem.cost.shape
        lots = {
            space: torch.rand(shape.layers, *units_of(shape, space), generator=generator)
            for space in self.spaces
        }
        return evenly(lots) if self.scope == "layer" else lots

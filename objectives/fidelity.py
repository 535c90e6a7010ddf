"""Cheaper trials: fewer rows, shorter texts and fewer epochs for the students, and only for them.

The teacher, the splits that score, and what a cost counts stay as they are: a low fidelity is worse
training, not another yardstick. Even so its results are no results of the full one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectives.data import Split
from objectives.errors import UserError, check_ranges, check_types
from objectives.search_method import SearchMethod


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How much of the full training a student gets. The default is all of it."""

    data: float = 1.0
    """Share of the train rows, augmented ones included, drawn with the study's seed. In (0, 1]."""
    epochs: float = 1.0
    """What the epochs of each stage of the method are multiplied with. In (0, 1]."""
    max_length: int | None = None
    """Tokens at most of a text or a pair of train and alpha, >= 4, shortened as `Task.max_length`
    shortens it. None: as long as the task has them."""

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(
            self,
            {
                "data": (0 < self.data <= 1, "in (0, 1]"),
                "epochs": (0 < self.epochs <= 1, "in (0, 1]"),
                "max_length": (self.max_length is None or self.max_length >= 4, ">= 4, or None"),
            },
        )

    def method(self, method: SearchMethod) -> SearchMethod:
        """The method with the epochs of its stages multiplied. Raises UserError if it has none."""
        if self.epochs == 1:
            return method
        stages = getattr(method, "stages", None)
        if stages is None:
            raise UserError(
                f"Fidelity.epochs is {self.epochs}, but {type(method).__name__} has no stages"
            )
        fewer = tuple(replace(stage, epochs=stage.epochs * self.epochs) for stage in stages)
        changes: dict[str, Any] = {"stages": fewer}
        return replace(method, **changes)

    def train(self, split: Split, seed: int) -> Split:
        """The rows of train that students learn from."""
        if self.data == 1:
            return split
        count = max(1, round(self.data * len(split)))
        rows = np.sort(np.random.default_rng(seed).permutation(len(split))[:count])
        return replace(
            split,
            input_ids=[split.input_ids[row] for row in rows],
            token_type_ids=[split.token_type_ids[row] for row in rows],
            labels=split.labels[rows],
        )

    def length(self, max_length: int) -> int:
        """Tokens at most of what students learn from, in a task of so many."""
        return max_length if self.max_length is None else min(self.max_length, max_length)


FULL = Fidelity()
"""All of it."""

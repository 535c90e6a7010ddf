"""Cheaper trials: fewer rows, shorter texts and fewer epochs for the students, and only for them.

The teacher, the splits that score, and what a cost counts stay as they are: a low fidelity is worse
training, not another yardstick. Even so its results are no results of the full one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from objectives.errors import check_ranges, check_types
from objectives.text.data import Split


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How much of the full training a student gets. The default is all of it."""

    data: float = 1.0
    """Share of the train rows, augmented ones included, drawn with the study's seed. In (0, 1]."""
    epochs: float = 1.0
    """Share of the training of each student: see `SearchMethod.shortened`. In (0, 1]."""
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

    def train(self, split: Split, seed: int) -> Split:
        """The rows of train that students learn from.

        Args:
            split: all rows of train.
            seed: of the study; it decides which rows.

        Returns:
            The share `data` of the rows, in their order.
        """
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
        """How long the text is that students learn from.

        Args:
            max_length: tokens, that of the task.

        Returns:
            Tokens at most.
        """
        return max_length if self.max_length is None else min(self.max_length, max_length)


FULL = Fidelity()
"""All of it."""

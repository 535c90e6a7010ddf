"""Cheaper trials: fewer rows, shorter texts and fewer epochs for the students.

The teacher, the splits that score, and what a cost counts stay as they are: a low fidelity is worse
training, not another yardstick. Even so its results are no results of the full one.
"""

from dataclasses import dataclass
from typing import Annotated

from objectives.errors import Checked, PositiveShare


@dataclass(frozen=True, kw_only=True)
class Fidelity(Checked):
    """Share of the full training that a student gets; by default all of it."""

    data: PositiveShare = 1.0
    """Share of the train rows, augmented ones included, drawn with the study's seed. In (0, 1]."""
    epochs: PositiveShare = 1.0
    """Share of the training of each student: see `SearchMethod.scale_epochs`. In (0, 1]."""
    max_length: Annotated[int, ">= 4"] | None = None
    """Longest text or pair of train and alpha in tokens, >= 4, cut as `Task.max_length` cuts it.
    None: as long as the task has them."""


FULL = Fidelity()
"""Full training."""

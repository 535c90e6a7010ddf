"""What the methods share whose students go through stages: the budget, the stages, the batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from objectives.architecture import BertShape, check_spaces
from objectives.device import Precision
from objectives.distillation import check_comparable
from objectives.errors import check_ranges
from objectives.search_method import SearchMethod
from objectives.stages import Stage


@dataclass(frozen=True, kw_only=True)
class StagedMethod(SearchMethod):
    """Base of the methods that `staged_search` takes."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"target_ratio", "tolerance"})

    target_ratio: float = 0.5
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    tolerance: float = 0.05
    """t: the cut model lies in [(1 - t) R, (1 + t) R]. In [0, 1)."""
    stages: tuple[Stage, ...] = (
        Stage(name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden", keep="best"),
    )
    """What the weights go through, those that search first."""
    batch_size: int = 32
    """Sequences in a batch of `train`, and in one of `alpha`. >= 1."""
    precision: Precision = "auto"
    """Of the matmuls of the students' training, and of the teacher whose hidden states they learn.
    "auto" is bfloat16 where the device has instructions for it, else float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            {
                "target_ratio": (0 < self.target_ratio <= 1, "in (0, 1]"),
                "tolerance": (0 <= self.tolerance < 1, "in [0, 1)"),
                "batch_size": (self.batch_size >= 1, ">= 1"),
            },
        )
        check_spaces(self.spaces)

    def check_shapes(self, student: BertShape, teacher: BertShape) -> None:
        """A loss that compares layers, or heads, wants those of the teacher that are theirs."""
        for stage in self.stages:
            check_comparable(stage.loss, student, teacher)

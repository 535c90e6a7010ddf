"""Sandwich (Press et al. 2020): the sublayers of a transformer in another order."""

# A layer is self-attention, s, then a feed-forward network, f. In the order s^k (sf)^(n - k) f^k of
# n layers attention moves to the bottom and feed-forward to the top, at the same number of
# parameters and of FLOPs; k = 0 is the plain order. In the paper a language model of 16 layers,
# trained from scratch, is best at k = 6.

from dataclasses import dataclass, replace

from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import NonNegativeInt, PositiveShare, UserError
from objectives.problem import Problem
from objectives.pruning.one_shot import OneShot
from objectives.students.bert.architecture import BertArchitecture, sandwich
from objectives.students.bert.cutting import shape_of


@dataclass(frozen=True, kw_only=True)
class Sandwich(OneShot):
    """The student's sublayers in the order of a sandwich, distilled. The knob is `k`."""

    k: NonNegativeInt = 1
    """Sandwich coefficient: attentions that come first, FFNs that come last. In [0, layers - 1]."""
    target_ratio: PositiveShare = 1.0
    """R: share of the unpruned model's cost to keep, by Fisher information. In (0, 1]."""

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        super().check_shapes(student, teacher)
        layers = shape_of(student).layers
        if self.k >= layers:
            raise UserError(
                f"Sandwich.k is {self.k}; the student has {layers} layers, so it must be in "
                f"[0, {layers - 1}]"
            )

    def choose(self, problem: Problem, seed: int) -> BertArchitecture:
        """The units of highest score inside the budget, in the order of the sandwich."""
        order = sandwich(problem.shape.layers, self.k) if self.k else None
        return replace(super().choose(problem, seed), order=order)

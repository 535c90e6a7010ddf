"""Fisher search: what a unit is worth is measured again and again while the budget shrinks.

Every unit carries a worth, the Fisher information of its mask: the mean square of the gradient of
the task loss, or of the logits, with respect to the mask, one sequence at a time (Kwon et al. 2022
measure it once and cut). Here each step trains the weights of the student of the moment by
distillation, and then moves the worths a share kappa towards the squared gradients of a fresh
batch. The budget falls from the full model to R; the units of highest alpha, which is worth over
price to the power of lambda, stay open. Masks are 0 or 1, so that the weights learn in the model
that will be cut; a closed unit keeps its gradient, and so may open again (what lies in a closed
head keeps its worth). After the search the student is cut and distilled further.

Why squares: the gradient of a mask is all but zero on average where the student is near its
optimum, and what is left drowns in the noise of a batch; its square is that noise, which says how
much the unit matters. Gradient descent on alpha (`mask_search.py`) follows the average.

Without a stage that searches, as by default, units are measured once and cut at once.
docs/inner_search.md compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from objectives.budget import TargetSchedule
from objectives.errors import check_ranges
from objectives.fisher_alpha import FisherAlpha
from objectives.importance import Squares
from objectives.problem import Problem
from objectives.search_method import Outcome, Progress
from objectives.staged_method import StagedMethod
from objectives.staged_search import staged_search


@dataclass(frozen=True, kw_only=True)
class FisherSearch(StagedMethod):
    """Iterated Fisher information. The knobs of the outer study are `per_slot`."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}

    flops_weight: float = 0.9
    """lambda: the power of its price that a unit's worth is divided by; 1 ranks by worth per FLOP,
    less favours heads, the dear units, more favours neurons. >= 0."""
    grad_rescale: float = 0.03
    """kappa: share of a new batch in the running mean of the worths. In (0, 1]. It acts in stages
    that search, as do `target_schedule`, `ramp` and `refresh`."""

    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units to search, of heads, ffn, qk, v and input (or input_qkv)."""
    squares: Squares = "logits"
    """Whose squared gradient is a unit's worth: that of the "loss" on the labels, as Kwon et al.,
    or of the "logits", how far the answer moves."""
    target_schedule: TargetSchedule = "cubic"
    """How the budget falls from the full model to R: constant, linear, geometric or cubic."""
    ramp: float = 1.0
    """Share of the search in which it falls. In (0, 1]."""
    refresh: int = 4
    """Steps between two choices of the open units. >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            {
                "flops_weight": (self.flops_weight >= 0, ">= 0"),
                "grad_rescale": (0 < self.grad_rescale <= 1, "in (0, 1]"),
                "ramp": (0 < self.ramp <= 1, "in (0, 1]"),
                "refresh": (self.refresh >= 1, ">= 1"),
            },
        )

    def idle(self) -> Mapping[str, str]:
        """Without a stage that searches the units are chosen once."""
        if any(stage.searches for stage in self.stages):
            constant = self.target_schedule == "constant"
            return {"ramp": "it acts with a target that falls"} if constant else {}
        names = ("grad_rescale", "target_schedule", "ramp", "refresh")
        return dict.fromkeys(names, "it acts in stages that search, and none of them does")

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search with all members as one program, then cut and distil."""
        alpha = FisherAlpha(members, problem, seed)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)

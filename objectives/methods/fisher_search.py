"""Fisher search: the units that move the answer most for their FLOPs stay."""

# The score of a unit is the Fisher information of its mask (Kwon et al. 2022): squared gradients of
# one sequence at a time. Why squares: the gradient of a mask is almost zero on average where the
# student is near its optimum, and what is left drowns in the noise of a batch; its square is that
# noise, which says how much the unit matters. Gradient descent on alpha (`mask_search.py`) follows
# the average. To measure again while the budget falls gained nothing (docs/comparison.md).

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from objectives.errors import NonNegativeFloat
from objectives.problem import Problem
from objectives.pruning.importance import Squares, importance_of_student, per_cost
from objectives.pruning.one_shot import OneShot
from objectives.students.bert.architecture import SPACES


@dataclass(frozen=True, kw_only=True)
class FisherSearch(OneShot):
    """Keep the units that move the answer most for their FLOPs.

    Units are measured once, then cut, then distilled. The usual knobs are `target_ratio` and
    `cost_power`."""

    per_slot: ClassVar[frozenset[str]] = OneShot.per_slot | {"cost_power"}
    searchable: ClassVar[tuple[str, ...]] = SPACES

    cost_power: NonNegativeFloat = 0.9
    """Power of its cost that a unit's score is divided by; 1 ranks by score per FLOP, less favours
    heads, the expensive units, more favours neurons. >= 0."""
    squares: Squares = "logits"
    """Squared gradients that are a unit's score: of the "loss" on labels, or of the "logits"."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        importance = importance_of_student(problem, self.spaces, self.squares)
        exact = {space: value.double() for space, value in importance.items()}
        return per_cost(exact, problem.budget.cost, self.cost_power)

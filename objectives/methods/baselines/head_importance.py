"""Head importance (Michel et al. 2019): heads go in the order of a first-order estimate.

The importance of a head is the mean over sequences of |dL/dmask|: how fast the task's loss changes
as the head fades. As in the paper it is divided by the norm over its layer, and the heads of the
whole model then compete."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import normalize

from objectives.problem import Problem
from objectives.pruning.importance import first_order_of_student, per_cost
from objectives.pruning.one_shot import OneShot


@dataclass(frozen=True, kw_only=True)
class HeadImportance(OneShot):
    """Remove the heads with the smallest mean |dL/dmask|."""

    spaces: tuple[str, ...] = ("heads",)
    """Kinds of units, heads alone as in the paper; several compete by importance per cost."""
    normalise: bool = True
    """Divide by the Euclidean norm over the layer, of each kind."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        scores = first_order_of_student(problem, self.spaces)
        if self.normalise:  # a layer that does not matter at all has importances of 0
            scores = {
                space: normalize(value.flatten(1), eps=1e-30).view_as(value)
                if value[0].numel() > 1  # else all layers would tie
                else value
                for space, value in scores.items()
            }
        return per_cost(scores, problem.budget.cost)

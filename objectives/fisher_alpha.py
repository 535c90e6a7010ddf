"""Alpha that follows the Fisher information of the masks while the budget shrinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from objectives.architecture import Architecture
from objectives.budget import kept_units, scheduled_ratio
from objectives.descending_alpha import knobs_of
from objectives.importance import importance_of_student, squared_gradients
from objectives.optimisation import per_student
from objectives.problem import Problem
from objectives.stage_training import StageTraining

if TYPE_CHECKING:
    from objectives.methods.fisher_search import FisherSearch


class FisherAlpha:
    """The alpha of a population: what each unit is worth, and which are open at the moment."""

    from_train = False

    def __init__(self, members: Sequence[FisherSearch], problem: Problem, seed: int):
        self.members, self.method, self.problem = members, members[0], problem
        self.batches = problem.alpha.shuffled(self.method.batch_size, seed, problem.device)
        knobs = ("target_ratio", "grad_rescale")
        self.target_ratio, self.step_size = knobs_of(members, knobs, problem.device)
        self.price = problem.cost.of_one_unit()
        importance = importance_of_student(problem, self.method.spaces, self.method.squares)
        self.worth = _shares(
            {
                space: value.expand(len(members), *value.shape).clone()
                for space, value in importance.items()
            }
        )
        self.steps = 0
        self.opened: dict[str, Tensor] = {}

    def masks(self, progress: float) -> dict[str, Tensor]:
        """1 for the units that are open now, else 0; chosen anew every few steps."""
        if self.steps % self.method.refresh == 0:
            self.opened = self._open(progress)
        return self.opened

    def learn(
        self, training: StageTraining, masks: Mapping[str, Tensor], progress: float
    ) -> dict[str, Tensor]:
        """Move each worth towards its squared gradient on a batch, a share kappa of the way.

        That of what lies in a closed head stays: its gradient is 0, whatever it is worth.
        """
        del progress
        self.steps += 1
        batch = next(self.batches)
        fresh = _shares(squared_gradients(training.population, batch, masks, self.method.squares))
        moves = {space: _in_open_head(masks, space) for space in self.worth}
        stays = torch.stack(
            [((1 - moves[space]) * worth).flatten(1).sum(1) for space, worth in self.worth.items()]
        ).sum(0)
        for space, worth in self.worth.items():
            share = per_student(self.step_size, worth) * moves[space]
            wanted = fresh[space] * per_student(1 - stays, worth)
            worth.lerp_(wanted, share.expand_as(worth))
        ratio = self.problem.cost.expected(masks) / self.problem.cost_full
        return {"open_ratio": ratio}

    def keep(self, places: Tensor) -> None:
        """Go on with these students alone, (K',) int64."""
        self.members = [self.members[place] for place in places.tolist()]
        self.target_ratio, self.step_size = self.target_ratio[places], self.step_size[places]
        self.worth = {space: worth[places] for space, worth in self.worth.items()}
        self.opened = {space: mask[places] for space, mask in self.opened.items()}

    def architecture(self, place: int) -> Architecture:
        """The units of highest alpha inside the budget."""
        if any(worth[place].isnan().any() for worth in self.worth.values()):
            raise FloatingPointError("alpha is nan after the search")
        return self.members[place].within_budget(self._alpha(place), self.problem)

    def _open(self, progress: float) -> dict[str, Tensor]:
        """The masks of all students at the budget of the moment, (K, layers, *units)."""
        method, problem = self.method, self.problem
        whole = problem.cost.full / problem.cost_full
        ratios = scheduled_ratio(
            self.target_ratio, progress, method.ramp, method.target_schedule, whole
        )
        rows = [
            kept_units(
                self._alpha(place),
                problem.cost,
                target=ratio * problem.cost_full,
                tolerance=member.tolerance,
                threshold=torch.inf,
            )
            for place, (member, ratio) in enumerate(zip(self.members, ratios.tolist(), strict=True))
        ]
        masks = {
            space: torch.stack([row[space] for row in rows]).float().to(problem.device)
            for space in method.spaces
        }
        # A closed head is itself left whole: else its own gradient would be 0, and it stay closed.
        return {
            space: mask.maximum(1 - _in_open_head(masks, space)) for space, mask in masks.items()
        }

    def _alpha(self, place: int) -> dict[str, Tensor]:
        """Worth over price to the power of lambda, of one student, on the CPU."""
        weight = self.members[place].flops_weight
        return {
            space: worth[place].double().cpu() / self.price[space] ** weight
            for space, worth in self.worth.items()
        }


def _in_open_head(masks: Mapping[str, Tensor], space: str) -> Tensor:
    """1 for the units of open heads, for inputs of layers that have one, and for all other units;
    else 0. Of a shape that goes with the masks of the space, (K, layers, ...)."""
    if "heads" not in masks or space in ("heads", "ffn"):
        return torch.ones_like(masks[space])
    open_KLH = masks["heads"]
    in_head = space in ("qk", "v")
    return open_KLH[..., None] if in_head else open_KLH.amax(-1)[..., None, None]


def _shares(squares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of each student's total over all units: one factor for all keeps what a unit is worth beside
    another, and takes away how the loss as a whole rises and falls."""
    total = sum(square.flatten(1).sum(1) for square in squares.values())
    assert isinstance(total, Tensor)
    return {
        space: square / per_student(total.clamp_min(torch.finfo(square.dtype).tiny), square)
        for space, square in squares.items()
    }

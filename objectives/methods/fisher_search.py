"""Fisher search: what a unit is worth is measured again and again while the budget shrinks.

Every unit carries a worth, the Fisher information of its mask: the mean square of the gradient of
the task loss, or of the logits, with respect to the mask, one sequence at a time (Kwon et al. 2022
measure it once and cut). Here each step trains the weights of the student of the moment by
distillation, and then moves the worths a share kappa towards the squared gradients of a fresh
batch. The budget falls from the full model to R; the units of highest alpha, which is worth over
price to the power of lambda, stay open. Masks are 0 or 1, so that the weights learn in the model
that will be cut; a closed unit keeps its gradient, and so may open again (what lies in a closed
head keeps its worth). While what is open costs within t of the budget, so much stays open. After
the search the student is cut and distilled further.

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

import torch
from torch import Tensor

from objectives.bert.architecture import BertArchitecture
from objectives.errors import check_ranges
from objectives.measures.budget import TargetSchedule, kept_units, scheduled_ratio
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search.descending_alpha import knobs_of
from objectives.search.importance import Squares, importance_of_student, squared_gradients
from objectives.search.staged_method import StagedMethod
from objectives.search.staged_search import staged_search
from objectives.search_method import Outcome
from objectives.training.optimisation import per_student
from objectives.training.stage_training import StageTraining

_ROUNDING = 1e-9
"""A student may cost this share more than what is open: sums are rounded."""


@dataclass(frozen=True, kw_only=True)
class FisherSearch(StagedMethod):
    """Keep the units that move the answer most for their FLOPs: the recommended method.

    Without a stage that searches, as by default, units are measured once, then cut, then distilled;
    with one they are measured again and again in training, which gained nothing where it was
    compared (docs/comparison.md). The usual knobs are `target_ratio` and `flops_weight`.
    """

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
        idle = dict(super().idle())
        if not any(stage.searches for stage in self.stages):
            names = ("tolerance", "grad_rescale", "target_schedule", "ramp", "refresh")
            idle |= dict.fromkeys(names, "it acts in stages that search, and none of them does")
        elif self.target_schedule == "constant":
            idle["ramp"] = "it acts with a target that falls"
        return idle

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search with all members as one program, then cut and distil."""
        alpha = FisherAlpha(members, problem, seed)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)


class FisherAlpha:
    """The alpha of a population: what each unit is worth, and which are open at the moment."""

    from_train = False

    def __init__(self, members: Sequence[FisherSearch], problem: Problem, seed: int):
        self.members, self.method, self.problem = members, members[0], problem
        self.batches = problem.alpha.shuffled(self.method.batch_size, seed, problem.device)
        knobs = ("target_ratio", "tolerance", "grad_rescale")
        self.target_ratio, self.tolerance, self.step_size = knobs_of(members, knobs, problem.device)
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

    def architecture(self, place: int) -> BertArchitecture:
        """The units of highest alpha: as many as are open, if that lies in the band around R."""
        if any(worth[place].isnan().any() for worth in self.worth.values()):
            raise FloatingPointError("alpha is nan after the search")
        kept = self._kept(place, self._near_what_is_open(self.target_ratio)[place])
        masks = {space: mask.tolist() for space, mask in kept.items()}
        return BertArchitecture.from_masks(self.problem.cost.shape, masks)

    def _near_what_is_open(self, ratios: Tensor) -> list[float]:
        """What each student may cost at these ratios, (K,): what is open, if that is within t of
        them, as the hinge of a mask search has no force there."""
        problem = self.problem
        wanted = ratios.double().cpu() * problem.cost_full
        if self.opened:
            own = problem.cost.expected(self.opened).cpu()
            in_band = (own - wanted).abs() <= self.tolerance.double().cpu() * wanted
            wanted = torch.where(in_band, own * (1 + _ROUNDING), wanted)
        targets: list[float] = wanted.tolist()
        return targets

    def _kept(self, place: int, target: float) -> dict[str, Tensor]:
        """Which units of highest alpha a student of this cost keeps: bool, (layers, *units)."""
        return kept_units(
            self._alpha(place),
            self.problem.cost,
            target=target,
            tolerance=self.members[place].tolerance,
            threshold=torch.inf,
        )

    def _open(self, progress: float) -> dict[str, Tensor]:
        """The masks of all students at the budget of the moment, (K, layers, *units)."""
        method, problem = self.method, self.problem
        whole = problem.cost.full / problem.cost_full
        ratios = scheduled_ratio(
            self.target_ratio, progress, method.ramp, method.target_schedule, whole
        )
        rows = [
            self._kept(place, target)
            for place, target in enumerate(self._near_what_is_open(ratios))
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

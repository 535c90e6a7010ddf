"""Mask search by gradient: alpha learns which units matter, a FLOPs loss how many may stay.

Every unit carries an alpha; its mask, a sigmoid of alpha, multiplies the unit. In a stage that
searches, each step trains the weights by distillation, then alpha by the task loss plus lambda
times the FLOPs hinge. Then the student is cut to the budget and distilled again."""

# This is the search of the source report on TinyBERT and of its follow-up DAP-BERT (ICONIP 2021).
# What the two leave open or do differently is a field here, and `PRESETS` says who takes what.

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.device import on_device
from objectives.errors import (
    InnerShare,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    UserError,
)
from objectives.measures.budget import TargetSchedule, discretise, hinge_loss, scheduled_ratio
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.descending_alpha import (
    AlphaAdam,
    AlphaOptimizer,
    AlphaSgd,
    AlphaSign,
    DescendingAlpha,
    Gradients,
)
from objectives.pruning.importance import importance_of_student
from objectives.pruning.staged_method import StagedMethod, check_searches
from objectives.pruning.staged_search import staged_search
from objectives.search_method import Outcome
from objectives.students.bert.architecture import SPACES, BertArchitecture, units_of
from objectives.students.bert.cutting import shape_of
from objectives.text.data import Batch
from objectives.training.losses import prediction_loss, task_loss
from objectives.training.stage_training import StageTraining
from objectives.training.stages import Stage


def ranked_alpha(
    importance: Mapping[str, Tensor],
    cost: Mapping[str, float],
    lowest: float,
    highest: float,
    device: str,
) -> dict[str, Tensor]:
    """Alpha from `lowest` to `highest` in the order of importance per cost of a unit."""
    # A unit's position is the share of the cost of all searched units that belongs to those of
    # lower rank, so that a common shift of all alphas lowers the cost at an even rate.
    scores = torch.cat([(value / cost[space]).flatten() for space, value in importance.items()])
    prices = [torch.full((value.numel(),), float(cost[s])) for s, value in importance.items()]
    costs = torch.cat(prices).to(scores)
    order = scores.argsort(stable=True)
    below = costs[order].cumsum(0) - costs[order]
    position = torch.empty_like(scores)
    position[order] = below / below.max().clamp_min(1e-12)
    alpha = (lowest + (highest - lowest) * position).split([v.numel() for v in importance.values()])
    parts = zip(importance.items(), alpha, strict=True)
    return {space: part.view_as(value).to(device) for (space, value), part in parts}


def sigmoid_masks(alpha: Mapping[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """Masks in (0, 1): sigmoid(alpha / temperature), of alpha's shapes."""
    return {space: (value / temperature).sigmoid() for space, value in alpha.items()}


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The source report. Where it says nothing (t, lambda, alpha's optimiser) a usual value.
        "seed": {
            "start": "uniform",
            "threshold": 0.01,
            "discretise": "threshold",
            "hinge_on": "discrete",
            "one_sided": False,
            "tolerance": 0.05,
            "target_schedule": "constant",
            "ramp": 1.0,
            "alpha_optimizer": "adam",
            "grad_rescale": 0.1,
            "temperature": (1.0, 1.0),
            "alpha_loss": "labels",
            "alpha_data": "alpha",
            "heads_by": "softmax",
        },
        # The follow-up's code.
        "dap": {
            "start": "uniform",
            "threshold": 0.99,
            "hinge_on": "expected",
            "one_sided": True,
            "tolerance": 0.01,
            "target_schedule": "geometric",
            "ramp": 1.0,
            "alpha_optimizer": "sign",
            "update_share": 0.1,
            "grad_rescale": 1.0,
            "temperature": (1.0, 1.0),
            "alpha_loss": "teacher",
            "alpha_data": "train",
            "heads_by": "sigmoid",
        },
        # Ours: masks that sharpen as the temperature falls end at 0 or 1. All else are defaults.
        "anneal": {"start": "uniform"},
    }
)
"""Fields of MaskSearch by preset. Stages are no part of it: `stages.FOUR_STEPS` are the source
report's. Left out of the two, among others: masks of query and key both (here of the query), the
best checkpoint while the search goes on, and of the follow-up the labels beside the teacher's
logits. As everywhere the embeddings are frozen, there is no dropout, a constant rate has a warm-up
of 10% before it, and a rate goes by the share of the FLOPs that is cut."""


@dataclass(frozen=True, kw_only=True)
class MaskSearch(StagedMethod):
    """Gradient descent on masks; the defaults are "anneal", begun from Fisher information.

    The usual knobs are those of `per_slot`. Also tuned this search is behind `FisherSearch`, which
    ranks the units once (docs/comparison.md)."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}
    searchable: ClassVar[tuple[str, ...]] = SPACES

    flops_weight: NonNegativeFloat = 1.0
    """lambda: weight of the FLOPs loss beside alpha's task loss; for "sign" 0 or not. >= 0."""
    grad_rescale: PositiveFloat = 0.1
    """kappa: step size of alpha's optimiser; a factor on the gradient would cancel in Adam. > 0."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=2, searches=True),
        Stage(name="recover", epochs=1),
    )
    """Stages of the weights, those that search first."""
    initial_alpha: float = 5.0
    """Alpha of the units at the start, or their middle: sigmoid(5) = 0.993, almost open."""
    start: Literal["uniform", "fisher"] = "fisher"
    """Alpha at the start: all equal, or +- `spread` in the order of Fisher information per cost."""
    spread: NonNegativeFloat = 3.0
    """Half the range of alpha under the start "fisher". >= 0."""
    heads_by: Literal["sigmoid", "softmax"] = "sigmoid"
    """Masks of heads: a gate each; or one softmax over the heads of a layer, begun from N(0, 0.01),
    of which `heads_kept` stay (the source report, eq. 5). Its sum is 1: no FLOPs loss moves it."""
    heads_kept: PositiveInt | None = None
    """Heads of each layer that stay under "softmax". None: R's share of them, at least one."""
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.1)
    """Temperature of the masks at the start and at the end of a search, geometric between."""
    threshold: InnerShare = 0.5
    """A mask above it counts as open. In (0, 1)."""
    discretise: Literal["budget", "threshold"] = "budget"
    """Which units stay: the highest alphas inside the band around R, or all whose mask is above the
    threshold and no others, as in the source report, whatever they cost."""
    hinge_on: Literal["discrete", "expected"] = "discrete"
    """FLOPs that decide the side of the band: of the open units, or the sum of the soft masks."""
    one_sided: bool = False
    """The band of the FLOPs loss ends at R, not at (1 + t) R. (The cut model's does not change.)"""
    target_schedule: TargetSchedule = "geometric"
    """How the target goes from the student's own ratio to R; "constant" is R all along."""
    ramp: PositiveShare = 0.8
    """Share of the search in which it falls. In (0, 1]."""
    alpha_loss: Literal["labels", "teacher"] = "labels"
    """Target of alpha beside FLOPs: the task's loss on the labels, or the teacher's logits."""
    alpha_data: Literal["alpha", "train"] = "alpha"
    """The split whose batches alpha learns from. With "train" and the teacher's logits alpha shares
    batch, loss and backward pass with the weights; with labels it takes an order of its own."""
    alpha_optimizer: Literal["adam", "sgd", "sign"] = "adam"
    """How alpha moves; "sign" as DAP-BERT, along the signs of both gradients."""
    update_share: PositiveShare = 1.0
    """rho: share of alpha's entries, those of largest gradient, that "sign" moves. In (0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_searches(self)

    def inactive(self) -> Mapping[str, str]:
        inactive = dict(super().inactive())
        for name, field, value in (
            ("spread", "start", "fisher"),
            ("heads_kept", "heads_by", "softmax"),
            ("update_share", "alpha_optimizer", "sign"),
        ):
            if getattr(self, field) != value:
                inactive[name] = f"it only acts with {field}={value!r}"
        if "heads" not in self.spaces:
            inactive |= dict.fromkeys(("heads_by", "heads_kept"), "it only acts on searched heads")
        if self.target_schedule == "constant":
            inactive["ramp"] = "it only acts with a falling target"
        if self.alpha_optimizer == "sign" and self.flops_weight > 0:
            inactive["flops_weight"] = "with alpha_optimizer='sign' it only matters if it is 0"
        of_hinge = ("hinge_on", "one_sided", "target_schedule", "ramp")
        if self.flops_weight == 0:
            of_loss = (*of_hinge, "tolerance") if self.discretise == "threshold" else of_hinge
            inactive |= dict.fromkeys(of_loss, "it acts through the FLOPs loss, whose weight is 0")
        if self.spaces == ("heads",) and self.heads_by == "softmax":
            of_gates = ("flops_weight", "threshold", "temperature", "initial_alpha")
            inactive |= dict.fromkeys((*of_hinge, *of_gates), "heads_by='softmax' has no gates")
        return inactive

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        """R; what was found where the threshold alone decides, as no budget was promised."""
        if self.discretise == "threshold":
            return problem.budget.ratio(units), self.tolerance
        return super()._asked(problem, units)

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        super().check_shapes(student, teacher)
        heads = shape_of(student).heads
        if (self.heads_kept or 1) > heads:
            raise UserError(
                f"MaskSearch.heads_kept is {self.heads_kept}; the student has {heads} a layer"
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A search with the fields of a preset.

        Args:
            name: "seed", after the report on TinyBERT; "dap", after DAP-BERT; or "anneal", ours.
            **changes: other fields of MaskSearch, such as stages=FOUR_STEPS.

        Returns:
            The method.

        Raises:
            UserError: for a name that there is not.
        """
        if name not in PRESETS:
            raise UserError(f"MaskSearch has no preset '{name}'; there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        alpha = GradientAlpha(members, problem, seed)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)


class GradientAlpha(DescendingAlpha):
    """The alpha of a population, with its batches and its optimiser."""

    members: Sequence[MaskSearch]
    method: MaskSearch

    def __init__(self, members: Sequence[MaskSearch], problem: Problem, seed: int):
        super().__init__(members, problem, seed)
        self.heads_share = self.method.heads_by == "softmax" and "heads" in self.method.spaces
        initial = _initial(self.method, problem)
        if self.heads_share:
            drawn = 0.01 * torch.randn(initial["heads"].shape, generator=self.generator)
            initial["heads"] = on_device(drawn, problem.device)
        every = {s: value.expand(len(members), *value.shape) for s, value in initial.items()}
        self.alpha = {space: value.clone().requires_grad_() for space, value in every.items()}
        kinds: Mapping[str, Callable[..., AlphaOptimizer]] = {
            "adam": AlphaAdam,
            "sgd": AlphaSgd,
            "sign": partial(AlphaSign, kept=self.method.update_share),
        }
        self.optimizer = kinds[self.method.alpha_optimizer](self.alpha, self.step_size)
        # The same batch, the same forward pass as the weights.
        self.from_train = self.method.alpha_data == "train" and self.method.alpha_loss == "teacher"
        size, device = self.method.batch_size, problem.device
        self.batches: Iterator[Batch] = (
            problem.alpha.shuffled(size, seed, device)
            if self.method.alpha_data == "alpha"
            # In an order of its own: the weights take train in that of `seed`.
            else problem.train.shuffled(size, (seed, 1), device)
        )

    def masks(self, progress: float) -> dict[str, Tensor]:
        """Current masks: sigmoid(alpha / temperature); softmax over heads if heads_by="softmax"."""
        start, end = self.method.temperature
        masks = sigmoid_masks(self.alpha, start * (end / start) ** progress)
        if self.heads_share:
            masks["heads"] = self.alpha["heads"].softmax(-1)
        return masks

    def learn(
        self, training: StageTraining, masks: Mapping[str, Tensor], progress: float
    ) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}
        task: Gradients
        if self.from_train:
            task = {s: alpha.grad for s, alpha in self.alpha.items() if alpha.grad is not None}
            assert len(task) == len(self.alpha), "the weights' backward pass reaches alpha"
            for alpha in self.alpha.values():
                alpha.grad = None
        else:
            loss, slopes = training.mask_gradients(next(self.batches), masks, self._task_loss)
            measured["alpha_loss"] = loss
            # By the chain rule: the gradient of this sum by a mask is the slope at it.
            task = self.gradients(torch.stack([(masks[s] * slopes[s]).sum() for s in masks]))
        flops, ratios = self._flops_gradients(progress)
        self.optimizer.step(task, flops)
        return {**measured, **ratios}

    def _task_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.method.alpha_loss == "labels":
            return task_loss(logits, batch.labels)
        wanted = self.problem.alpha_logits[batch.rows]
        return prediction_loss(logits, wanted, several=self.problem.train.several)

    def architecture(self, index: int) -> BertArchitecture:
        alpha, member = self.of(index), self.members[index]
        if self.heads_share:
            alpha["heads"] = _top(alpha["heads"], self._heads_kept(index))
        threshold = member.temperature[1] * math.log(member.threshold / (1 - member.threshold))
        if member.discretise == "threshold":
            budget = self.problem.budget
            # A band without ends: whatever the threshold keeps lies inside.
            return discretise(
                alpha, budget.cost, target=budget.full, tolerance=math.inf, threshold=threshold
            )
        return member.within_budget(alpha, self.problem, threshold)

    def _heads_kept(self, index: int) -> int:
        member, heads = self.members[index], self.problem.shape.heads
        return member.heads_kept or max(1, round(member.target_ratio * heads))

    def _flops_gradients(self, progress: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradients of lambda times the hinge loss, and the ratios that it saw."""
        method, cost, full = self.method, self.problem.budget.cost, self.problem.budget.full
        masks = self.masks(progress)  # afresh: the graph of the others is spent
        if self.heads_share:
            # They sum to 1 whatever alpha is: no gradient says close one.
            students = enumerate(self.alpha["heads"].detach())
            largest = [_top(alpha, self._heads_kept(index)) > 0 for index, alpha in students]
            masks["heads"] = torch.stack(largest).to(masks["heads"].dtype)
        expected = cost.expected(masks)
        opened = {space: mask.detach() > method.threshold for space, mask in masks.items()}
        actual = cost.expected(opened)
        target = full * scheduled_ratio(
            self.target_ratio, progress, method.ramp, method.target_schedule, cost.full / full
        )
        side = actual if method.hinge_on == "discrete" else expected.detach()
        loss = hinge_loss(expected, side, target, self.tolerance, one_sided=method.one_sided)
        return self.gradients(self.flops_weight * loss), {
            "expected_ratio": expected.detach() / full,
            "open_ratio": actual / full,
            "scheduled_ratio": target / full,
        }


def _initial(method: MaskSearch, problem: Problem) -> dict[str, Tensor]:
    shape, middle, device = problem.shape, method.initial_alpha, problem.device
    if method.start == "uniform":
        sizes = {space: (shape.layers, *units_of(shape, space)) for space in method.spaces}
        return {space: torch.full(size, middle, device=device) for space, size in sizes.items()}
    importance = importance_of_student(problem, method.spaces, "loss")
    cost, spread = problem.budget.cost.of_one_unit(), method.spread
    return ranked_alpha(importance, cost, middle - spread, middle + spread, device)


def _top(alpha: Tensor, count: int) -> Tensor:
    """(layers, heads): +inf for the `count` largest of each layer, -inf for the others."""
    largest = alpha.topk(count, dim=-1).indices
    return torch.full_like(alpha, -math.inf).scatter(-1, largest, math.inf)

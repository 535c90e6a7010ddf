"""Differentiable mask search: alpha learns which units matter, a FLOPs loss how many may stay.

Every head and every FFN neuron carries an alpha; its mask sigmoid(alpha / temperature) multiplies
the unit. In a stage that searches, each step trains the weights by distillation on a batch of
`train`, then alpha by cross-entropy plus the FLOPs loss on a batch of `alpha`. Then the student is
cut to the budget and the smaller model is distilled again.

The settings below are the preset `anneal`: the masks sharpen as the temperature falls, and the
target falls from the full model to R. It follows DAP-BERT (ICONIP 2021) and its forerunner on
TinyBERT, but for the start of alpha, the temperature, and the discretisation that meets the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from objectives.architecture import SPACES
from objectives.budget import discretise, hinge_loss, scheduled_ratio
from objectives.data import Batch
from objectives.device import to_device
from objectives.distillation import prediction_loss
from objectives.errors import UserError
from objectives.importance import fisher_importance
from objectives.optimisation import linear_schedule, weight_optimizer
from objectives.population import Population
from objectives.problem import Problem
from objectives.pruned_bert import cut
from objectives.relaxation import (
    AlphaAdam,
    constant_alpha,
    geometric_temperature,
    ranked_alpha,
    sigmoid_masks,
)
from objectives.search_method import (
    CurvePoint,
    Outcome,
    Progress,
    SearchFailure,
    SearchMethod,
    SearchResult,
    Stopped,
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of training with one optimiser and one schedule."""

    name: str
    epochs: float
    """Passes over the train split. > 0."""
    learning_rate: float = 1e-4
    """Peak of the weights' AdamW rate, > 0: 10% warm-up, linear decay. After the cut it counts
    times the share of FLOPs that was cut: Adam's steps do not shrink with the gradient, so at the
    rate that a student needs which lost much, one that lost little is driven from its teacher."""
    searches: bool = False
    """Alpha is trained too. The student is cut after the last stage that searches."""

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"Stage.{name} is {getattr(self, name)!r}; it must be > 0")


@dataclass(frozen=True, kw_only=True)
class MaskSearch(SearchMethod):
    """Mask search with the preset `anneal`. Its first four fields are the outer study's knobs."""

    per_slot: ClassVar[frozenset[str]] = frozenset(
        {"flops_weight", "target_ratio", "tolerance", "grad_rescale"}
    )

    flops_weight: float = 1.0
    """lambda: weight of the FLOPs loss beside the task loss of alpha. >= 0."""
    target_ratio: float = 0.5
    """R: share of the unpruned model's FLOPs to keep. In (0, 1]."""
    tolerance: float = 0.05
    """t: the cut model lies in [(1 - t) R, (1 + t) R]. In [0, 1)."""
    grad_rescale: float = 0.1
    """kappa: step size of Adam on alpha, where a factor on the gradient would cancel. > 0."""

    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units to search: some of `SPACES`, "input" or "input_qkv" but not both."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=2, searches=True),
        Stage(name="recover", epochs=1),
    )
    batch_size: int = 32
    """Sequences in a batch of `train` and in one of `alpha`."""
    initial_alpha: float = 5.0
    """Alpha of the units at the start, or their middle: sigmoid(5) = 0.993, all but open."""
    start: Literal["uniform", "fisher"] = "fisher"
    """Alpha at the start: all equal, or `initial_alpha` +- `spread` in the order of Fisher
    information per FLOP."""
    spread: float = 3.0
    """Half the range of alpha under the start "fisher". >= 0."""
    temperature: tuple[float, float] = (1.0, 0.1)
    """Temperature of the masks at the start and at the end of a search, geometric between."""
    threshold: float = 0.5
    """A mask above it counts as open. In (0, 1)."""
    ramp: float = 0.8
    """Share of the search in which the target falls from 1 to R. In (0, 1]."""

    def __post_init__(self) -> None:
        ranges = {
            "flops_weight": (self.flops_weight >= 0, ">= 0"),
            "target_ratio": (0 < self.target_ratio <= 1, "in (0, 1]"),
            "tolerance": (0 <= self.tolerance < 1, "in [0, 1)"),
            "grad_rescale": (self.grad_rescale > 0, "> 0"),
            "spaces": (
                bool(self.spaces)
                and set(self.spaces) <= set(SPACES)
                and not {"input", "input_qkv"} <= set(self.spaces),
                f"some of {', '.join(SPACES)}, and one of the two kinds of input at most",
            ),
            "stages": (
                bool(self.stages) and self.stages[0].searches and _searches_first(self.stages),
                "stages that search, then stages that do not",
            ),
            "batch_size": (self.batch_size >= 1, ">= 1"),
            "start": (self.start in ("uniform", "fisher"), '"uniform" or "fisher"'),
            "spread": (self.spread >= 0, ">= 0"),
            "temperature": (min(self.temperature) > 0, "> 0"),
            "threshold": (0 < self.threshold < 1, "in (0, 1)"),
            "ramp": (0 < self.ramp <= 1, "in (0, 1]"),
        }
        for name, (holds, wanted) in ranges.items():
            if not holds:
                raise UserError(
                    f"MaskSearch.{name} is {getattr(self, name)!r}; it must be {wanted}"
                )

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search with all members as one program; then cut and recover one after another."""
        search = _Search(members, problem, seed, progress)
        search.run()
        for slot in range(len(members)):
            yield search.finish(slot)


class _Search:
    """One population on its way through the stages."""

    def __init__(
        self, members: Sequence[MaskSearch], problem: Problem, seed: int, progress: Progress
    ):
        self.members, self.method = members, members[0]
        self.problem, self.seed, self.progress = problem, seed, progress
        self.population = Population.of([problem.student] * len(members))
        self.alpha = {
            space: value.expand(len(members), *value.shape).clone().requires_grad_()
            for space, value in self._initial_alpha().items()
        }
        self.flops_weight, self.target_ratio, self.tolerance, self.step_size = (
            torch.tensor([getattr(member, knob) for member in members], device=problem.device)
            for knob in ("flops_weight", "target_ratio", "tolerance", "grad_rescale")
        )
        self.alpha_batches = problem.alpha.shuffled(self.method.batch_size, seed, problem.device)
        self.curves: list[list[CurvePoint]] = [[] for _ in members]
        self.stopped: Set[int] = frozenset()

    def run(self) -> None:
        """Train weights and alpha of all students through the stages that search."""
        stages = [stage for stage in self.method.stages if stage.searches]
        total = sum(self._steps(stage) for stage in stages)
        alpha_optimizer = AlphaAdam(self.alpha, self.step_size)
        done = 0
        for number, stage in enumerate(stages):
            measured: list[dict[str, Tensor]] = []
            for batch, train in self._training(self.population, stage, number, 1.0):
                progress, done = done / total, done + 1
                masks = self._masks(progress)
                loss = train(batch, {space: mask.detach() for space, mask in masks.items()})
                gradients, of_alpha = self._alpha_gradients(masks, progress)
                alpha_optimizer.step(gradients)
                measured.append({"loss": loss, **of_alpha})
                self.stopped = self.stopped | self.progress.advance()
                if len(self.stopped) == len(self.members):
                    return
            for slot, curve in enumerate(self.curves):
                curve.extend(_curve(stage, measured, slot))

    def finish(self, slot: int) -> Outcome:
        """Discretise, cut and recover one student."""
        member, problem = self.members[slot], self.problem
        if slot in self.stopped:
            return Stopped(slot)
        alpha = {space: value[slot].detach().cpu() for space, value in self.alpha.items()}
        failure = _not_finite(slot, self.curves[slot])
        if failure:
            return failure
        if not all(value.isfinite().all() for value in alpha.values()):
            return SearchFailure(slot, "alpha is nan or infinite after the search")
        architecture = discretise(
            alpha,
            problem.cost,
            target=member.target_ratio * problem.cost_full,
            tolerance=member.tolerance,
            threshold=member.temperature[1] * math.log(member.threshold / (1 - member.threshold)),
        )
        model = cut(self.population.slot(slot), problem.student.config, architecture)
        population = Population.of([to_device(model, problem.device)])
        share_cut = 1 - problem.cost.exact(architecture) / problem.cost.full
        curve = list(self.curves[slot])
        for number, stage in enumerate(member.stages):
            if stage.searches or not share_cut:  # nothing to recover from
                continue
            measured = []
            for batch, train in self._training(population, stage, number, share_cut):
                measured.append({"loss": train(batch, {})})
                self.stopped = self.stopped | self.progress.advance()
                if slot in self.stopped:
                    return Stopped(slot)
            curve.extend(_curve(stage, measured, 0))
        model.load_state_dict(population.slot(0))
        if not all(weight.isfinite().all() for weight in model.parameters()):
            return SearchFailure(slot, "its weights are nan or infinite after the last stage")
        return _not_finite(slot, curve) or SearchResult(
            slot=slot,
            architecture=architecture,
            model=model,
            target_ratio=member.target_ratio,
            tolerance=member.tolerance,
            curve=curve,
        )

    def _initial_alpha(self) -> dict[str, Tensor]:
        problem, method = self.problem, self.method
        shape = problem.cost.shape
        if method.start == "uniform":
            return constant_alpha(shape, method.spaces, method.initial_alpha, problem.device)
        key = ("fisher importance", method.spaces)
        if key not in problem.memory:
            problem.memory[key] = fisher_importance(
                problem.student, problem.alpha, shape, method.spaces, problem.device
            )
        importance = problem.memory[key]
        low, high = method.initial_alpha - method.spread, method.initial_alpha + method.spread
        return ranked_alpha(importance, problem.cost.of_one_unit(), low, high)

    def _steps(self, stage: Stage) -> int:
        return math.ceil(stage.epochs * len(self.problem.train) / self.method.batch_size)

    def _training(
        self, population: Population, stage: Stage, number: int, rate_factor: float
    ) -> Iterator[tuple[Batch, _TrainStep]]:
        """The batches of a stage, each with the function that trains the weights on it."""
        steps = self._steps(stage)
        self.progress.begin(stage.name, steps)
        optimizer = weight_optimizer(population.weights, rate_factor * stage.learning_rate)
        schedule = linear_schedule(optimizer, steps)

        def train(batch: Batch, masks: Mapping[str, Tensor]) -> Tensor:
            loss = prediction_loss(
                population.logits(batch, masks), self.problem.teacher_logits[batch.rows]
            )
            loss.sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        batches = self.problem.train.shuffled(
            self.method.batch_size, self.seed + number, self.problem.device
        )
        for batch in islice(batches, steps):
            yield batch, train

    def _masks(self, progress: float) -> dict[str, Tensor]:
        temperature = geometric_temperature(*self.method.temperature, progress)
        return sigmoid_masks(self.alpha, temperature)

    def _alpha_gradients(
        self, masks: Mapping[str, Tensor], progress: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradients of the alpha loss for every alpha; what it measured on the way, each (K,)."""
        cost, full = self.problem.cost, self.problem.cost_full
        batch = next(self.alpha_batches)
        logits = self.population.logits(batch, masks)
        task_loss = functional.cross_entropy(
            logits.transpose(1, 2), batch.labels.expand(len(logits), -1), reduction="none"
        ).mean(-1)
        expected = cost.expected(masks)
        actual = cost.expected(
            {space: mask.detach() > self.method.threshold for space, mask in masks.items()}
        )
        target = full * scheduled_ratio(self.target_ratio, progress, self.method.ramp)
        flops_loss = hinge_loss(expected, actual, target, self.tolerance)
        loss = task_loss + self.flops_weight * flops_loss
        gradients = torch.autograd.grad(loss.sum(), list(self.alpha.values()))
        return dict(zip(self.alpha, gradients, strict=True)), {
            "alpha_loss": task_loss.detach(),
            "expected_ratio": expected.detach() / full,
            "open_ratio": actual / full,
            "scheduled_ratio": target / full,
        }


_TrainStep = Callable[[Batch, Mapping[str, Tensor]], Tensor]


def _curve(stage: Stage, measured: Sequence[Mapping[str, Tensor]], slot: int) -> list[CurvePoint]:
    """The rows of one student's learning curve; only here does a stage wait for the device."""
    columns = {name: torch.stack([row[name] for row in measured])[:, slot] for name in measured[0]}
    values = {name: column.tolist() for name, column in columns.items()}
    return [
        {"stage": stage.name, "step": step, **{name: row[step] for name, row in values.items()}}
        for step in range(len(measured))
    ]


def _not_finite(slot: int, curve: Sequence[CurvePoint]) -> SearchFailure | None:
    for point in curve:
        if not math.isfinite(float(point["loss"])):
            return SearchFailure(
                slot,
                f"the loss is {point['loss']} at step {point['step']} of stage {point['stage']}",
            )
    return None


def _searches_first(stages: Sequence[Stage]) -> bool:
    searches = [stage.searches for stage in stages]
    return searches == sorted(searches, reverse=True)

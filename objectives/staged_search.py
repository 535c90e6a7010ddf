"""A population on its way through the stages: search with masks, cut, distil what is left.

How alpha learns is not known here: see `Alpha`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from objectives.architecture import Architecture
from objectives.cutting import cut
from objectives.data import Batch
from objectives.device import to_device
from objectives.distillation import (
    hidden_loss,
    intermediate_loss,
    layer_stride,
    prediction_loss,
)
from objectives.errors import UserError
from objectives.optimisation import PopulationOptimizer
from objectives.population import Population, Trace
from objectives.problem import Problem
from objectives.pruned_bert import PrunedBertForSequenceClassification
from objectives.search_method import (
    CurvePoint,
    Outcome,
    Progress,
    SearchFailure,
    SearchResult,
    Stopped,
)
from objectives.stages import Loss, Stage

Masks = Mapping[str, Tensor]

_HIDDEN_WEIGHT = 10.0
"""Of the hidden states beside the logits. docs/inner_search.md compares a few."""


class Alpha(Protocol):
    """The architecture variables of K students, and how they learn."""

    from_train: bool
    """Alpha learns from the loss of the weights: the masks that `masks` gives carry its gradient,
    which the weights' backward pass adds up."""

    def masks(self, progress: float) -> Masks:
        """What multiplies the units at `progress` in [0, 1] of the search, (K, layers, *units)."""

    def learn(self, population: Population, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        """Make a step, after the weights made theirs; what it measured on the way, each (K,)."""

    def architecture(self, slot: int) -> Architecture:
        """The discrete answer. Raises FloatingPointError if alpha is not finite."""


class Member(Protocol):
    """What every method that goes through stages has."""

    @property
    def target_ratio(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def stages(self) -> tuple[Stage, ...]: ...
    @property
    def batch_size(self) -> int: ...


def staged_search(
    members: Sequence[Member], problem: Problem, alpha: Alpha, *, seed: int, progress: Progress
) -> Iterator[Outcome]:
    """Take all members through the stages of the first; yields one outcome for each."""
    for stage in members[0].stages:
        if stage.loss != "prediction":
            _check_layer_map(problem, stage.loss)
    run = _Run(members, problem, alpha, seed, progress)
    run.search()
    for group in _groups(len(members), problem.device):
        yield from run.finish(group)


def _groups(size: int, device: str) -> list[list[int]]:
    """The slots that train together once they are cut.

    A GPU trains all as one program; a CPU gains nothing by that and would pay for the padding.
    """
    slots = list(range(size))
    return [slots] if device.startswith("cuda") else [[slot] for slot in slots]


class _Run:
    """One population at work."""

    def __init__(
        self,
        members: Sequence[Member],
        problem: Problem,
        alpha: Alpha,
        seed: int,
        progress: Progress,
    ):
        self.members, self.problem, self.alpha = members, problem, alpha
        self.seed, self.progress = seed, progress
        self.stages = members[0].stages
        self.population = Population.of([problem.student] * len(members))
        self.curves: list[list[CurvePoint]] = [[] for _ in members]
        self.stopped: Set[int] = frozenset()

    def search(self) -> None:
        """Train weights and alpha of all students through the stages that search."""
        stages = [stage for stage in self.stages if stage.searches]
        total, done = sum(self.steps(stage.epochs) for stage in stages), 0
        shares = [1 - member.target_ratio for member in self.members]
        for number, stage in enumerate(stages):
            if stage.start == "student" and number:
                self.population = Population.of([self.problem.student] * len(self.members))
            training = _Training(self, self.population, stage, shares, None)
            for batch in training.batches(number):
                progress, done = done / total, done + 1
                masks = self.alpha.masks(progress)
                own = masks if self.alpha.from_train else _detached(masks)
                loss = training.step(batch, own)
                training.measured.append(
                    {"loss": loss, **self.alpha.learn(self.population, masks, progress)}
                )
                self.stopped = self.stopped | self.progress.advance()
                if len(self.stopped) == len(self.members):
                    return
            for slot, curve in enumerate(self.curves):
                curve.extend(training.curve(slot))

    def finish(self, slots: Sequence[int]) -> Iterator[Outcome]:
        """Discretise, cut and distil these students, as one population."""
        going: list[int] = []
        architectures: dict[int, Architecture] = {}
        for slot in slots:
            failure = _not_finite(slot, self.curves[slot])
            if slot in self.stopped:
                yield Stopped(slot)
            elif failure:
                yield failure
            else:
                try:
                    architectures[slot] = self.alpha.architecture(slot)
                    going.append(slot)
                except FloatingPointError as error:
                    yield SearchFailure(slot, str(error))
        if not going:
            return
        models = self._distil(going, [architectures[slot] for slot in going])
        for slot, model in zip(going, models, strict=True):
            failure = _not_finite(slot, self.curves[slot])
            if slot in self.stopped:
                yield Stopped(slot)
            elif failure:
                yield failure
            elif not all(weight.isfinite().all() for weight in model.parameters()):
                yield SearchFailure(slot, "its weights are nan or infinite after the last stage")
            else:
                yield SearchResult(
                    slot=slot,
                    architecture=architectures[slot],
                    model=model,
                    target_ratio=self.members[slot].target_ratio,
                    tolerance=self.members[slot].tolerance,
                    curve=self.curves[slot],
                )

    def _distil(
        self, slots: Sequence[int], architectures: Sequence[Architecture]
    ) -> list[PrunedBertForSequenceClassification]:
        """Cut these students and take them through the stages after the search."""
        problem = self.problem
        models = self._cut([self.population.slot(slot) for slot in slots], architectures)
        shares = [1 - problem.cost.exact(a) / problem.cost_full for a in architectures]
        if not any(shares) and not problem.student_is_new:  # nothing was lost
            return models
        for number, stage in enumerate(self.stages):
            if stage.searches:
                continue
            if stage.start == "student":
                models = self._cut([problem.student.state_dict()] * len(slots), architectures)
            training = _Training(self, Population.of(models), stage, shares, architectures)
            best = _Best(models, problem.select_metric) if stage.keep == "best" else None
            for step, batch in enumerate(training.batches(number), start=1):
                training.measured.append({"loss": training.step(batch, {})})
                self.stopped = self.stopped | self.progress.advance()
                if self.stopped >= set(slots):
                    return models
                if best and (step == training.steps or step % self.steps(1) == 0):
                    best.take(training.population)
            for place, (slot, model) in enumerate(zip(slots, models, strict=True)):
                self.curves[slot].extend(training.curve(place))
                model.load_state_dict(training.population.slot(place))
            if best:
                best.restore()
        return models

    def _cut(
        self, states: Sequence[Mapping[str, Tensor]], architectures: Sequence[Architecture]
    ) -> list[PrunedBertForSequenceClassification]:
        config, device = self.problem.student.config, self.problem.device
        return [
            to_device(cut(state, config, architecture), device)
            for state, architecture in zip(states, architectures, strict=True)
        ]

    @cached_property
    def teacher(self) -> Population:
        """The teacher as a population of one, for the stages that look inside it."""
        return Population.of([self.problem.teacher])

    def steps(self, epochs: float) -> int:
        """Steps in so many passes over the train split."""
        return math.ceil(epochs * len(self.problem.train) / self.members[0].batch_size)


class _Training:
    """The weights of some students in one stage."""

    def __init__(
        self,
        run: _Run,
        population: Population,
        stage: Stage,
        shares: Sequence[float],
        architectures: Sequence[Architecture] | None,
    ):
        """`shares` are those of the FLOPs that each loses; before the cut there are no
        architectures."""
        self.run, self.population, self.stage = run, population, stage
        self.steps = run.steps(stage.epochs)
        self.measured: list[Mapping[str, Tensor]] = []
        problem = run.problem
        self.fit: dict[str, Tensor] = {}
        if stage.loss == "intermediate":
            self.heads = _matching_heads(problem, population.size, architectures)
        if stage.loss != "prediction":
            self.fit = _new_fit(problem, population.size, run.seed)
        # One that is not the teacher has all to learn, whatever is cut.
        rates = torch.tensor(
            [stage.learning_rate * (1.0 if problem.student_is_new else share) for share in shares],
            device=problem.device,
        )
        self.optimizer = PopulationOptimizer(
            {**population.weights, **self.fit}, rates, self.steps, stage.schedule
        )

    def batches(self, number: int) -> Iterator[Batch]:
        """The batches of the stage, in an order of its own."""
        run = self.run
        run.progress.begin(self.stage.name, self.steps)
        batches = run.problem.train.shuffled(
            run.members[0].batch_size, run.seed + number, run.problem.device
        )
        return islice(batches, self.steps)

    def step(self, batch: Batch, masks: Masks) -> Tensor:
        """One step of the weights; the loss of each student before it, (K,)."""
        loss = self._loss(batch, masks)
        loss.sum().backward()
        self.optimizer.step()
        return loss.detach()

    def curve(self, place: int) -> list[CurvePoint]:
        """The rows of one student's learning curve; only here does a stage wait for the device."""
        columns: dict[str, list[float]] = {
            name: torch.stack([row[name] for row in self.measured])[:, place].tolist()
            for name in self.measured[0]
        }
        return [
            {
                "stage": self.stage.name,
                "step": step,
                **{name: column[step] for name, column in columns.items()},
            }
            for step in range(len(self.measured))
        ]

    def _loss(self, batch: Batch, masks: Masks) -> Tensor:
        wanted = self.run.problem.teacher_logits[batch.rows]
        if self.stage.loss == "prediction":
            return prediction_loss(self.population.logits(batch, masks), wanted)
        with_scores = self.stage.loss == "intermediate"
        student, teacher = Trace(with_scores=with_scores), Trace(with_scores=with_scores)
        logits = self.population.logits(batch, masks, student)
        with torch.no_grad():
            self.run.teacher.logits(batch, trace=teacher)
        attended = batch.attention_mask
        if with_scores:
            return intermediate_loss(student, teacher, attended, self.heads, self.fit)
        hidden = hidden_loss(student, teacher, attended, self.fit)
        return prediction_loss(logits, wanted) + _HIDDEN_WEIGHT * hidden


class _Best:
    """The best weights so far of each model, by the metric on the selection split."""

    def __init__(
        self,
        models: Sequence[PrunedBertForSequenceClassification],
        metric: Callable[[PrunedBertForSequenceClassification], float],
    ):
        self.models, self.metric = models, metric
        self.scores = [-math.inf] * len(models)
        self.states: list[Mapping[str, Tensor]] = [{} for _ in models]

    def take(self, population: Population) -> None:
        """Score the population as it is; of equals the later one is kept."""
        for place, model in enumerate(self.models):
            state = {name: value.clone() for name, value in population.slot(place).items()}
            model.load_state_dict(state)
            score = self.metric(model)
            if score >= self.scores[place]:
                self.scores[place], self.states[place] = score, state

    def restore(self) -> None:
        """Give each model its best weights."""
        for model, state in zip(self.models, self.states, strict=True):
            if state:  # a score that is never a number keeps the last
                model.load_state_dict(state)


def _detached(masks: Masks) -> Masks:
    return {space: mask.detach() for space, mask in masks.items()}


def _check_layer_map(problem: Problem, loss: Loss) -> None:
    student, teacher = problem.student.config, problem.teacher.config
    layer_stride(student.num_hidden_layers, teacher.num_hidden_layers)
    if loss == "intermediate" and student.num_attention_heads != teacher.num_attention_heads:
        raise UserError(
            f"the loss 'intermediate' compares attention head by head: the student has "
            f"{student.num_attention_heads} a layer, the teacher {teacher.num_attention_heads}; "
            "use stages with the loss 'prediction', or another student"
        )


def _matching_heads(
    problem: Problem, size: int, architectures: Sequence[Architecture] | None
) -> list[tuple[Tensor, Tensor]]:
    """For each layer which head of the teacher a student's is, and whether it is there: (K, H)."""
    shape = problem.cost.shape
    kept: list[list[Sequence[int]]] = (
        [[range(shape.heads)] * shape.layers] * size
        if architectures is None
        else [[layer.heads for layer in architecture.layers] for architecture in architectures]
    )
    matching = []
    for layer in range(shape.layers):
        widest = max(len(student[layer]) for student in kept)
        which = torch.zeros(size, widest, dtype=torch.int64)
        part = torch.zeros(size, widest)
        for slot, student in enumerate(kept):
            heads = torch.tensor(list(student[layer]), dtype=torch.int64)
            which[slot, : len(heads)], part[slot, : len(heads)] = heads, 1
        matching.append((which.to(problem.device), part.to(problem.device)))
    return matching


def _new_fit(problem: Problem, size: int, seed: int) -> dict[str, Tensor]:
    """The projection from the student's hidden states to the teacher's; none if equally wide."""
    own, wanted = problem.student.config.hidden_size, problem.teacher.config.hidden_size
    if own == wanted:
        return {}
    weight = torch.empty(wanted, own)
    generator = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(weight, std=problem.student.config.initializer_range, generator=generator)
    return {
        name: value.to(problem.device).expand(size, *value.shape).clone().requires_grad_()
        for name, value in (("weight", weight), ("bias", torch.zeros(wanted)))
    }


def _not_finite(slot: int, curve: Sequence[CurvePoint]) -> SearchFailure | None:
    for point in curve:
        if not math.isfinite(float(point["loss"])):
            return SearchFailure(
                slot,
                f"the loss is {point['loss']} at step {point['step']} of stage {point['stage']}",
            )
    return None

"""Train the weights of some students in one stage: batches, loss, steps, curves."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from objectives.device import autocast, on_device
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.text.data import Batch
from objectives.training.losses import hidden_loss, hint_loss, intermediate_loss, prediction_loss
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.population import Population, Trace
from objectives.training.recorded import Recordings, Tensors
from objectives.training.stages import WITH_SCORES, Stage
from objectives.training.teacher_states import teacher_trace

Masks = Mapping[str, Tensor]
"""Masks of each space (K, layers, *units): see `computed_weights.masked_weights`."""


class StageTraining:
    """Training of some students in one stage."""

    def __init__(
        self,
        problem: Problem,
        slots: Sequence[int],
        population: Population,
        stage: Stage,
        rates: Sequence[float],
        architectures: Sequence[BertArchitecture] | None,
        *,
        batch_size: int,
        seed: int,
        temperatures: Sequence[float] = (),
    ):
        """Prepare to train these slots at the peaks `rates`; architectures exist after the cut."""
        self.problem, self.population, self.stage = problem, population, stage
        self.slots, self.rates = list(slots), list(rates)
        self.batch_size, self.seed = batch_size, seed
        self.steps = steps_in(stage.epochs, problem, batch_size)
        self.measured: list[Mapping[str, Tensor]] = []
        size, loss = population.size, stage.loss
        self.heads = _matching_heads(problem, size, architectures) if loss in WITH_SCORES else []
        softer = temperatures or [stage.temperature] * size
        self.temperature = None
        if any(temperature != 1 for temperature in softer):
            self.temperature = on_device(torch.tensor(softer), problem.device)
        self.fit = _new_fit(problem, size, seed) if loss != "prediction" else {}
        self.optimizer = PopulationOptimizer(
            {**population.weights, **self.fit}, rates, self.steps, stage.schedule
        )
        self.recorded_steps = Recordings(problem.device, self.optimizer.drop_gradients)
        self._recorded_masks = Recordings(problem.device)

    def batches(self, number: int, progress: Progress, done: int = 0) -> Iterator[Batch]:
        """Remaining batches of the stage of this number, in an order of its own."""
        progress.begin(self.stage.name, self.steps, done)
        batches = self.problem.train.shuffled(
            self.batch_size, self.seed + number, self.problem.device, first=done
        )
        return islice(batches, self.steps - done)

    def step(self, batch: Batch, masks: Masks) -> Tensor:
        """Make one step of the weights; returns the loss of each student before it, (K,)."""
        self.optimizer.set_rate()
        inputs = {**vars(batch), **masks}
        # The gradient of masks that want one goes on beyond this step.
        if any(mask.requires_grad for mask in masks.values()):
            return self._made(inputs)["loss"]
        return self.recorded_steps.call(self._made, inputs)["loss"]

    def _made(self, inputs: Tensors) -> Tensors:
        """Make the step of a batch, with masks by space, at the current rates."""
        batch, masks = batch_and_masks(inputs)
        return self.optimizer.learn(self.loss(self.population, batch, masks))

    def mask_gradients(
        self, batch: Batch, masks: Masks, loss: Callable[[Tensor, Batch], Tensor]
    ) -> tuple[Tensor, Tensors]:
        """Loss (K,) of logits under masks, always the same one, and its gradients by the masks."""

        def gradients(inputs: Tensors) -> Tensors:
            of_batch, given = batch_and_masks(inputs)
            leaves = {space: mask.detach().requires_grad_() for space, mask in given.items()}
            losses = loss(self.population.logits(of_batch, leaves), of_batch)
            slopes = torch.autograd.grad(losses.sum(), [*leaves.values()], materialize_grads=True)
            return {"loss": losses.detach(), **dict(zip(leaves, slopes, strict=True))}

        given = {space: mask.detach() for space, mask in masks.items()}
        results = dict(self._recorded_masks.call(gradients, {**vars(batch), **given}))
        return results.pop("loss"), results

    def state(self, slot: int) -> dict[str, Tensor]:
        return self.population.slot(self.slots.index(slot))

    def curves(self) -> dict[int, list[CurvePoint]]:
        """Learning curves by slot, read back at once: no step waits for the device."""
        return dict(zip(self.slots, curve_points(self.stage.name, self.measured), strict=True))

    def loss(self, population: Population, batch: Batch, masks: Masks) -> Tensor:
        """Loss of these students on this batch, (K,)."""
        student, teacher = self.traces(batch)
        return self.compared(population.logits(batch, masks, student), student, teacher, batch)

    def traces(self, batch: Batch) -> tuple[Trace, Trace] | tuple[None, None]:
        """Traces for the students to fill on a batch, and the teacher's, if the loss needs them."""
        if self.stage.loss == "prediction":
            return None, None
        dtype, with_scores = self.population.matmul_dtype, self.stage.loss in WITH_SCORES
        teacher = teacher_trace(self.problem, batch, dtype, with_scores=with_scores)
        return Trace(with_scores=with_scores), teacher

    def compared(
        self,
        logits: Tensor,
        student: Trace | None,
        teacher: Trace | None,
        batch: Batch,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Loss (K,) of logits on a batch, against `wanted` (B, C) or the teacher's logits."""
        wanted = self.problem.teacher_logits[batch.rows] if wanted is None else wanted
        loss, several, inside = self.stage.loss, self.problem.train.several, None
        if student is not None and teacher is not None:
            attended = batch.attention_mask
            fit = {n: value.expand(len(logits), *value.shape[1:]) for n, value in self.fit.items()}
            with autocast(self.population.matmul_dtype, self.problem.device):  # of the projection
                if loss == "hint":
                    inside = hint_loss(student, teacher, attended, fit)
                elif loss in WITH_SCORES:
                    inside = intermediate_loss(student, teacher, attended, self.heads, fit)
                else:
                    inside = hidden_loss(student, teacher, attended, fit)
            if loss in ("hint", "intermediate"):
                return inside
        answers = prediction_loss(logits, wanted, self.temperature, several=several)
        return answers if inside is None else answers + self.stage.hidden_weight * inside


def batch_and_masks(inputs: Tensors) -> tuple[Batch, dict[str, Tensor]]:
    """Split what was joined as `{**vars(batch), **masks}`."""
    of_batch = {field.name: inputs[field.name] for field in fields(Batch)}
    return Batch(**of_batch), {n: mask for n, mask in inputs.items() if n not in of_batch}


class BestWeights:
    """Best weights of each model so far, by slot, by their score on the selection split."""

    def __init__(
        self,
        models: Mapping[int, PrunedBertForSequenceClassification],
        worth: Callable[[int, PrunedBertForSequenceClassification], float],
    ):
        self.models, self.worth = models, worth
        self.scores = dict.fromkeys(models, -math.inf)
        self.states: dict[int, Mapping[str, Tensor]] = {}

    def take(self, training: StageTraining) -> None:
        """Score the current students; of equal scores the later weights are kept."""
        for slot in training.slots:
            state, learns = training.state(slot), training.population.weights
            self.models[slot].load_state_dict(state)
            score = self.worth(slot, self.models[slot])
            if score >= self.scores[slot]:
                learnt = {name: state[name].clone() for name in state.keys() & learns.keys()}
                self.scores[slot], self.states[slot] = score, {**state, **learnt}

    def restore(self) -> None:
        for slot, state in self.states.items():  # a score that is never a number keeps the last
            self.models[slot].load_state_dict(state)


def curve_points(stage: str, measured: Sequence[Mapping[str, Tensor]]) -> list[list[CurvePoint]]:
    """Learning curves of K students, from measurements (K,) by name at each step."""
    names = list(measured[0])
    columns = [torch.stack([row[name] for row in measured], dim=1).tolist() for name in names]
    return [
        [
            {"stage": stage, "step": step, **dict(zip(names, row, strict=True))}
            for step, row in enumerate(zip(*of_student, strict=True))
        ]
        for of_student in zip(*columns, strict=True)
    ]


def steps_in(epochs: float, problem: Problem, batch_size: int) -> int:
    """Steps of `epochs` passes over the train split, rounded up."""
    steps = round(epochs * len(problem.train) / batch_size, 6)  # 0.1 * 3 * 1000 is over 300
    return max(1, math.ceil(steps))


def _matching_heads(
    problem: Problem, size: int, architectures: Sequence[BertArchitecture] | None
) -> list[tuple[Tensor, Tensor]]:
    """Teacher's head for each head of a student, and whether it exists: (K, H) for each layer."""
    cut_to = architectures or [BertArchitecture.full(problem.shape)] * size
    matching = []
    for layers in zip(*(architecture.layers for architecture in cut_to), strict=True):
        heads = [torch.tensor(layer.heads, dtype=torch.int64) for layer in layers]
        which = pad_sequence(heads, batch_first=True)
        part = pad_sequence([torch.ones(len(indices)) for indices in heads], batch_first=True)
        matching.append((which.to(problem.device), part.to(problem.device)))
    return matching


def _new_fit(problem: Problem, size: int, seed: int) -> dict[str, Tensor]:
    """Random projection from the student's hidden states to the teacher's; none if equally wide."""
    # One for each stage. (TinyBERT's is a part of the student, and so goes on.)
    width, wanted = problem.student.config.hidden_size, problem.teacher.config.hidden_size
    if width == wanted:
        return {}
    weight = torch.empty(wanted, width)
    generator = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(weight, std=problem.student.config.initializer_range, generator=generator)
    return {
        name: value.to(problem.device).expand(size, *value.shape).clone().requires_grad_()
        for name, value in (("weight", weight), ("bias", torch.zeros(wanted)))
    }

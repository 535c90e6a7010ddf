"""Alpha that learns by gradient descent: masks by sigmoid, the task loss, the FLOPs hinge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from objectives.alpha_optimizers import AlphaAdam, AlphaOptimizer, AlphaSgd, AlphaSign
from objectives.architecture import Architecture
from objectives.bilevel import unrolled_gradients
from objectives.budget import hinge_loss, scheduled_ratio
from objectives.data import Batch
from objectives.descending_alpha import DescendingAlpha
from objectives.distillation import prediction_loss
from objectives.evaluate import predict
from objectives.importance import importance_of_student
from objectives.losses import task_loss
from objectives.population import Population
from objectives.problem import Problem
from objectives.relaxation import (
    constant_alpha,
    geometric_temperature,
    ranked_alpha,
    sigmoid_masks,
    softmax_masks,
    straight_through,
)
from objectives.stage_training import StageTraining

if TYPE_CHECKING:
    from objectives.methods.mask_search import MaskSearch


class GradientAlpha(DescendingAlpha["MaskSearch"]):
    """The alpha of a population, with its batches and its optimiser."""

    def __init__(self, members: Sequence[MaskSearch], problem: Problem, seed: int):
        super().__init__(members, problem, seed)
        self.alpha = {
            space: value.expand(len(members), *value.shape).clone().requires_grad_()
            for space, value in _initial(self.method, problem).items()
        }
        self.optimizer = _optimizer(self.method, self.alpha, self.step_size)
        # The same batch, the same forward pass as the weights.
        self.from_train = self.method.alpha_data == "train" and self.method.alpha_loss == "teacher"
        size, device = self.method.batch_size, problem.device
        self.batches: Iterator[Batch] = (
            problem.alpha.shuffled(size, seed, device)
            if self.method.alpha_data == "alpha"
            # In an order of its own: the weights take train in that of `seed`.
            else problem.train.shuffled(size, (seed, 1), device)
        )
        self.ahead: Iterator[Batch] = problem.train.shuffled(size, seed + 1, device)

    def masks(self, progress: float) -> dict[str, Tensor]:
        """What the units are multiplied by: the soft masks, or draws of 0 and 1 with hard ones."""
        if not self.method.hard:
            return self._soft(progress)
        temperature = geometric_temperature(*self.method.temperature, progress)
        masks = {
            space: straight_through(alpha, self.noise(alpha), temperature)
            for space, alpha in self.alpha.items()
        }
        return self._with_softmax(masks)

    def _soft(self, progress: float) -> dict[str, Tensor]:
        """Sigmoid masks at the temperature of the moment; of hard masks the chance to be open."""
        temperature = geometric_temperature(*self.method.temperature, progress)
        masks = sigmoid_masks(self.alpha, 1.0 if self.method.hard else temperature)
        return self._with_softmax(masks)

    def _with_softmax(self, masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """With the heads by softmax, if they are so."""
        if self.method.heads_by == "softmax" and "heads" in masks:
            masks["heads"] = softmax_masks(self.alpha["heads"])
        return masks

    def learn(
        self, training: StageTraining, masks: Mapping[str, Tensor], progress: float
    ) -> dict[str, Tensor]:
        """One step against the gradients of the task loss and of the FLOPs loss."""
        task, measured = (
            (self._gradients_of_train(), {})
            if self.from_train
            else self._task_gradients(training, masks)
        )
        flops, ratios = self._flops_gradients(progress)
        self.optimizer.step(task, flops)
        return {**measured, **ratios}

    def architecture(self, place: int) -> Architecture:
        """The units of highest alpha inside the budget."""
        alpha, member = self.of(place), self.members[place]
        if member.heads_by == "softmax" and "heads" in alpha:
            alpha["heads"] = _top(alpha["heads"], self._heads_kept(place))
        temperature = 1.0 if member.hard else member.temperature[1]
        threshold = temperature * math.log(member.threshold / (1 - member.threshold))
        return member.within_budget(alpha, self.problem, threshold)

    def _heads_kept(self, place: int) -> int:
        member, heads = self.members[place], self.problem.cost.shape.heads
        return member.heads_kept or max(1, round(member.target_ratio * heads))

    def _gradients_of_train(self) -> dict[str, Tensor]:
        gradients = {}
        for space, alpha in self.alpha.items():
            assert alpha.grad is not None, "the weights' backward pass reaches alpha"
            gradients[space], alpha.grad = alpha.grad, None
        return gradients

    def _task_gradients(
        self, training: StageTraining, masks: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        population, batch = training.population, next(self.batches)
        if not self.method.unrolled_step:
            loss = self._loss(population, batch, masks)
            return self.gradients(loss), {"alpha_loss": loss.detach()}
        train = next(self.ahead)
        # What is compared are gradients at weights that differ by less than bfloat16 can tell.
        population = replace(population, matmul_dtype=torch.float32)
        of_masks, loss = unrolled_gradients(
            population.weights,
            {space: mask.detach().requires_grad_() for space, mask in masks.items()},
            lambda weights, masks: training.loss(
                replace(population, weights=weights), train, masks
            ),
            lambda weights, masks: self._loss(replace(population, weights=weights), batch, masks),
            self.method.unrolled_step,
        )
        gradients = torch.autograd.grad(
            [masks[space] for space in self.alpha],
            list(self.alpha.values()),
            [of_masks[space] for space in self.alpha],
        )
        return dict(zip(self.alpha, gradients, strict=True)), {"alpha_loss": loss}

    def _loss(self, population: Population, batch: Batch, masks: Mapping[str, Tensor]) -> Tensor:
        """What alpha learns beside FLOPs, (K,)."""
        logits = population.logits(batch, masks)
        if self.method.alpha_loss == "labels":
            return task_loss(logits, batch.labels)
        return prediction_loss(logits, self._teacher_logits()[batch.rows])

    def _flops_gradients(self, progress: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Of lambda times the hinge loss; and the ratios that it saw."""
        method, cost, full = self.method, self.problem.cost, self.problem.cost_full
        masks = self._soft(progress)  # afresh: the graph of the others is spent
        if method.heads_by == "softmax" and "heads" in masks:
            # They sum to the number of heads whatever alpha is: no gradient says close one.
            kept = torch.stack(
                [
                    _top(alpha, self._heads_kept(place)) > 0
                    for place, alpha in enumerate(self.alpha["heads"].detach())
                ]
            )
            masks["heads"] = kept.to(masks["heads"].dtype) + 0 * masks["heads"]
        expected = cost.expected(masks)
        opened = {space: mask.detach() > method.threshold for space, mask in masks.items()}
        actual = cost.expected(opened)
        target = full * scheduled_ratio(
            self.target_ratio, progress, method.ramp, method.target_schedule, cost.full / full
        )
        loss = hinge_loss(
            expected,
            actual if method.hinge_on == "discrete" else expected.detach(),
            target,
            self.tolerance,
            one_sided=method.one_sided,
        )
        return self.gradients(self.flops_weight * loss), {
            "expected_ratio": expected.detach() / full,
            "open_ratio": actual / full,
            "scheduled_ratio": target / full,
        }

    def _teacher_logits(self) -> Tensor:
        """The teacher's answers to the alpha split, (rows, C)."""
        problem, key = self.problem, "teacher logits of alpha"
        if key not in problem.memory:
            logits = predict(problem.teacher, problem.alpha, problem.device)
            problem.memory[key] = logits.to(problem.device)
        logits_of_alpha: Tensor = problem.memory[key]
        return logits_of_alpha


def _initial(method: MaskSearch, problem: Problem) -> dict[str, Tensor]:
    cost = problem.cost
    if method.start == "uniform":
        return constant_alpha(cost.shape, method.spaces, method.initial_alpha, problem.device)
    low, high = method.initial_alpha - method.spread, method.initial_alpha + method.spread
    return ranked_alpha(
        importance_of_student(problem, method.spaces, "loss"), cost.of_one_unit(), low, high
    )


def _optimizer(
    method: MaskSearch, alpha: Mapping[str, Tensor], step_size: Tensor
) -> AlphaOptimizer:
    if method.alpha_optimizer == "sgd":
        return AlphaSgd(alpha, step_size)
    if method.alpha_optimizer == "sign":
        return AlphaSign(alpha, step_size, method.update_share)
    return AlphaAdam(alpha, step_size)


def _top(alpha: Tensor, count: int) -> Tensor:
    """(layers, heads): +inf for the `count` largest of each layer, -inf for the others."""
    largest = alpha.topk(count, dim=-1).indices
    return torch.full_like(alpha, -math.inf).scatter(-1, largest, math.inf)

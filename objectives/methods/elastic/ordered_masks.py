"""Gradient search over masks of one trained student, along the order in which it was trained.

A student that was trained at many sizes saw its units leave in one order. So a layer has one
variable for each space, its shift, and the alpha and the mask of its unit of rank r are"""

#     alpha = log(n / (r + 1/2)) + shift        mask = sigmoid(alpha / temperature)
#
# where n is the number of units that the layer keeps if the ranking alone meets R. All shifts are 0
# at the start. A shift of 0.1 opens a tenth more of the units that the layer keeps; equal shifts
# keep the proportions of the layers. Each step moves the shifts of K students against the gradient
# of
#
#     the loss against the teacher's logits, on rows of alpha, + lambda x the FLOPs hinge
#
# times kappa, which falls linearly to 0. The weights stay as they are: K students share one model.

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.device import on_device
from objectives.measures.budget import hinge_loss, ranks_of
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.descending_alpha import DescendingAlpha
from objectives.pruning.slices import Order, smaller
from objectives.search_method import CurvePoint
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.text.data import Batch
from objectives.training.losses import prediction_loss
from objectives.training.optimisation import per_student
from objectives.training.population import Population
from objectives.training.stage_training import curve_points

_TEMPERATURE = (0.1, 0.02)
"""Temperature of the masks at the start and at the end, geometric between: a mask changes over a
tenth, then a fiftieth of the units that a layer keeps."""
_FEWEST = 0.25
"""Units that a layer without any counts as having, so that its first one can still open."""
_CLOSED = 1e-4
"""Masks below it are 0, so that the units beyond the last open one need not be computed."""


class OrderedMasks(DescendingAlpha):
    """Masks of K students on one model, and their search."""

    def __init__(
        self,
        members: Sequence[Any],
        problem: Problem,
        scores: Mapping[str, Tensor],
        begun: Sequence[BertArchitecture],
        *,
        batch_size: int,
        seed: int,
    ):
        """`scores`, (layers, units), give the order of the training; members begin at `begun`."""
        super().__init__(members, problem, seed)
        self.batches = problem.alpha.shuffled(batch_size, seed, problem.device)
        self.order = Order.by_scores(problem.shape, scores)
        self.ranks = {space: ranks_of(values) for space, values in scores.items()}
        self.begun = {}
        """Alpha at the start, by rank: (K, layers, units) of each space."""
        for space, values in scores.items():
            masks = [units.masks(problem.shape, (space,))[space] for units in begun]
            count_KL1 = torch.tensor(masks).sum(-1, keepdim=True).clamp_min(_FEWEST)
            alpha_KLU = (count_KL1 / (torch.arange(values.shape[-1]) + 0.5)).log()
            # A score of +inf or -inf decides a unit: no shift moves it.
            ranked = values.sort(dim=-1, descending=True).values.to(alpha_KLU)
            alpha_KLU = torch.where(ranked.isinf(), ranked, alpha_KLU)
            self.begun[space] = on_device(alpha_KLU, problem.device)
        shifts_KL1 = torch.zeros(len(members), problem.shape.layers, 1, device=problem.device)
        self.alpha = {space: shifts_KL1.clone().requires_grad_() for space in scores}

    def masks(self, progress: float) -> dict[str, Tensor]:
        """Current masks by rank, (K, layers, units): sigmoid((alpha + shift) / temperature)."""
        start, end = _TEMPERATURE
        temperature = start * (end / start) ** progress
        alpha = {space: self.begun[space] + shift for space, shift in self.alpha.items()}
        masks = {space: (value / temperature).sigmoid() for space, value in alpha.items()}
        return {space: mask * (mask > _CLOSED) for space, mask in masks.items()}

    def search(
        self,
        student: BertForSequenceClassification,
        steps: int,
        dtype: torch.dtype,
        progress: Progress,
    ) -> list[list[CurvePoint]]:
        """Take the steps on this model; the learning curve of each member."""
        ordered = copy.deepcopy(student)
        ordered.load_state_dict(self.order.applied(student.state_dict()))
        population = Population.of([ordered], dtype)
        progress.begin("search", steps)
        measured = []
        for step in range(steps):
            measured.append(self._step(population, step / steps))
            progress.advance()
        return curve_points("search", measured) if steps else [[] for _ in self.members]

    def scores(self, index: int) -> dict[str, Tensor]:
        """Alpha of each unit of one student, (layers, units) of each space, on the CPU."""
        alpha = {s: self.begun[s][index].cpu() + shift for s, shift in self.of(index).items()}
        return {space: value.gather(-1, self.ranks[space]) for space, value in alpha.items()}

    def _step(self, population: Population, progress: float) -> dict[str, Tensor]:
        masks, budget, left = self.masks(progress), self.problem.budget, 1 - progress
        opened = {space: mask.detach() > 0.5 for space, mask in masks.items()}
        expected, actual = budget.cost.expected(masks), budget.cost.expected(opened)
        hinge = hinge_loss(expected, actual, self.target_ratio * budget.full, self.tolerance)
        loss = self._loss(population, next(self.batches), masks)
        slopes = self.gradients(left * (loss + self.flops_weight * hinge))
        with torch.no_grad():
            for space, shift in self.alpha.items():
                # Beyond this all units of a layer are open, or all closed.
                furthest = math.log(2 * self.begun[space].shape[-1])
                shift.sub_(per_student(self.step_size, shift) * slopes[space])
                shift.clamp_(-furthest, furthest)
        return {
            "loss": loss.detach(),
            "expected_ratio": expected.detach() / budget.full,
            "open_ratio": actual / budget.full,
            "scheduled_ratio": self.target_ratio,
        }

    def _loss(self, population: Population, batch: Batch, masks: Mapping[str, Tensor]) -> Tensor:
        """Loss against the teacher's logits under each student's masks, (K,), in one pass."""
        students, rows = len(self.members), len(batch.rows)
        repeated = {name: torch.cat([part] * students) for name, part in vars(batch).items()}
        shape = self.problem.shape
        widest = {"heads": shape.heads, "ffn": shape.ffn}
        if self.problem.device == "cpu":  # a GPU would wait for the widths
            open_units = {space: (mask_KLU > 0).sum(-1) for space, mask_KLU in masks.items()}
            widest |= {space: int(counts.max()) for space, counts in open_units.items()}
        units = LayerUnits(tuple(range(widest["heads"])), tuple(range(widest["ffn"])))
        cut = {space: mask_KLU[..., : widest[space]] for space, mask_KLU in masks.items()}
        row_masks = {s: mask.repeat_interleave(rows, dim=0)[None] for s, mask in cut.items()}
        sliced = smaller(population, (units.widths(shape),) * shape.layers)
        for weight in sliced.weights.values():
            weight.requires_grad_(False)
        (logits_NC,) = sliced.logits(Batch(**repeated), row_masks=row_masks)
        wanted_BC, several = self.problem.alpha_logits[batch.rows], self.problem.train.several
        return prediction_loss(logits_NC.unflatten(0, (students, rows)), wanted_BC, several=several)

"""CAS (Pasunuru & Bansal 2019): one set of weights learns task after task, with a cell for each.

The study's task comes first, then those beside it in their order. For each, ENAS chooses a cell on
a copy of the weights as they are; the cell is then trained on the weights themselves, which keep
what they have learnt as `training.continual` says. In the end each task is answered by its own cell
and head with the weights of the last. What a task has lost since it was learnt is its `forgotten`.

What differs from the paper's code beside what differs in `Enas`: the penalty is on what a weight
does with its inputs, where the code transposes it, for which x theta does not stay as it was; it
holds in the training that is kept, not in the search; it spares the weights of every earlier cell,
not of the last alone, and leaves out the heads.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from objectives.errors import NonNegativeFloat
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchResult
from objectives.strategies.controller_search import ControllerSearch
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.text.data import Batch
from objectives.training.continual import Anchor
from objectives.weights.cells import answers_loss, finished
from objectives.weights.independent import not_finite
from objectives.weights.super_nets.super_net import SuperNet


@dataclass(frozen=True, kw_only=True)
class Cas(ControllerSearch):
    """Search by a controller, task after task, on weights that are not to forget."""

    learns_beside: ClassVar[bool] = True

    sparsity_weight: NonNegativeFloat = 1e-3
    """lambda_b: of the block sparsity of the weights, then of their changes. >= 0."""
    orthogonality_weight: NonNegativeFloat = 1e-3
    """lambda_o: of what changes do with the inputs that the weights before them read. >= 0."""

    def _found(self, slot: int, problem: Problem, seed: int, progress: Progress) -> Outcome:
        tasks, learnt = (problem, *problem.beside), set[Tensor]()
        nets = self._with_heads(self._super_net(problem, seed, progress), problem, seed, progress)
        found: list[tuple[Mapping[str, Any], list[CurvePoint], float]] = []
        for net, task in zip(nets, tasks, strict=True):
            frozen = {id(w): w for w in net.parameters() if not w.requires_grad}  # not copied
            copied = copy.deepcopy(net, frozen)
            choices, curve = self._drawn([copied], [task], seed, progress)
            if not not_finite(slot, curve):
                curve += self._kept(net, choices, learnt, task, seed, progress)
            if failure := not_finite(slot, curve):
                return failure
            learnt |= {*net.shared(choices).parameters()}
            found.append((choices, curve, task.select_score(_model(net, choices))))
        results = []
        for net, task, (choices, curve, before) in zip(nets, tasks, found, strict=True):
            cell, model = net.genotype(choices), _model(net, choices)
            lost = None if task is tasks[-1] else before - task.select_score(model)
            result = SearchResult(slot, cell, model, curve, forgotten=lost)
            results.append(result)
        return replace(results[0], beside=tuple(results[1:]))

    def _kept(
        self,
        net: SuperNet,
        choices: Mapping[str, Any],
        learnt: set[Tensor],
        task: Problem,
        seed: int,
        progress: Progress,
    ) -> list[CurvePoint]:
        """Train a cell on the weights that stay; earlier tasks have `learnt` some of them."""
        weights = self.space.one_hot(choices)
        anchor = Anchor(net.shared(choices), learnt)

        def loss(batch: Batch, _: int) -> Tensor:
            penalty = anchor.penalty(self.sparsity_weight, self.orthogonality_weight)
            return answers_loss(net(batch.inputs, weights).logits, batch, task) + penalty

        return self._train(task, net, loss, self.epochs, "learn", seed, progress)


def _model(net: SuperNet, choices: Mapping[str, Any]) -> CellForSequenceClassification:
    return finished(net.extract(choices))

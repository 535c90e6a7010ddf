"""CAS (Pasunuru & Bansal 2019): one set of weights learns task after task, with a cell for each."""

# The study's task comes first, then those beside it in their order. For each, ENAS chooses a cell
# on a copy of the weights as they are; the cell is then trained on the weights themselves, which
# keep what they have learnt as `Anchor` says. In the end each task is answered by its own cell and
# head with the weights of the last. What a task has lost since it was learnt is its `forgotten`.

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from objectives.errors import NonNegativeFloat
from objectives.methods.cells.base.learning import answers_loss, finished
from objectives.methods.cells.base.super_net import SuperNet
from objectives.methods.cells.enas import Enas
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchResult, not_finite
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.text.data import Batch

# Keeps weights that learn another task from forgetting the last (CAS, Pasunuru & Bansal 2019).
#
# theta are the weights and theta_ref what they were, psi = theta - theta_ref. The loss of the new
# task is joined by
#
#     lambda_b Omega(psi) + lambda_o sum over weights || psi theta_ref^T ||_F,
#
# where a matrix maps inputs to outputs as `nn.Linear` stores it: where the product is 0, theta
# gives of any x in the row space of theta_ref what theta_ref gives. Omega is the sum over inputs
# of the norm of all weights that read them. Of a vector the two are sum |psi| and || psi *
# theta_ref ||. Before the first task theta_ref is 0: theta is to be sparse, so that there is room
# for the next.


def by_inputs(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight as matrices (groups, outputs, inputs), inputs those of a window; or as a vector."""
    if weight.ndim == 1:
        return weight
    if isinstance(module, nn.Embedding):  # it reads one-hot rows
        return weight.T[None]
    groups: int = getattr(module, "groups", 1)
    return weight.reshape(groups, -1, weight[0].numel())


def block_sparsity(change: Tensor) -> Tensor:
    """Omega of a change as `by_inputs` has it: a scalar."""
    return change.abs().sum() if change.ndim == 1 else vector_norm(change, dim=-2).sum()


def orthogonality(change: Tensor, reference: Tensor) -> Tensor:
    """|| psi theta_ref^T ||_F, 0 where the change reads nothing that the reference reads."""
    read: Tensor = vector_norm(change * reference if change.ndim == 1 else change @ reference.mT)
    return read


class Anchor:
    """Weights that are to stay near what they are now, or before the first task near 0."""

    def __init__(self, parts: nn.Module, learnt: Collection[Tensor]):
        """Hold those weights of `parts` that tasks have `learnt`, or all before the first task."""
        self._held = [
            (module, weight, by_inputs(module, weight.detach().clone() * bool(learnt)))
            for module in parts.modules()
            for weight in module.parameters(recurse=False)
            if weight.requires_grad and (not learnt or weight in learnt)
        ]

    def penalty(self, sparsity_weight: float, orthogonality_weight: float) -> Tensor:
        """The penalty beside the loss: a scalar."""
        terms = []
        for module, weight, reference in self._held:
            change = by_inputs(module, weight) - reference
            terms.append(sparsity_weight * block_sparsity(change))
            terms.append(orthogonality_weight * orthogonality(change, reference))
        return torch.stack(terms).sum()


@dataclass(frozen=True, kw_only=True)
class Cas(Enas):
    """Search by a controller, task after task, on weights that are not to forget."""

    learns_beside: ClassVar[bool] = True

    sparsity_weight: NonNegativeFloat = 1e-3
    """lambda_b: of the block sparsity of the weights, then of their changes. >= 0."""
    orthogonality_weight: NonNegativeFloat = 1e-3
    """lambda_o: of what changes do with the inputs that the weights before them read. >= 0."""

    def _outcome(self, slot: int, problem: Problem, seed: int, progress: Progress) -> Outcome:
        tasks, learnt = (problem, *problem.beside), set[Tensor]()
        nets = self._with_heads(self._super_net(problem, seed), problem, seed)
        chosen: list[tuple[Mapping[str, Any], list[CurvePoint], float]] = []
        for net, task in zip(nets, tasks, strict=True):
            frozen = {id(w): w for w in net.parameters() if not w.requires_grad}  # not copied
            copied = copy.deepcopy(net, frozen)
            choices, curve = self._drawn([copied], [task], seed, progress)
            if not not_finite(slot, curve):
                curve += self._kept(net, choices, learnt, task, seed, progress)
            if failure := not_finite(slot, curve):
                return failure
            learnt |= {*net.shared(choices).parameters()}
            chosen.append((choices, curve, task.select_score(_model(net, choices))))
        results = []
        for net, task, (choices, curve, before) in zip(nets, tasks, chosen, strict=True):
            cell, model = net.genotype(choices), _model(net, choices)
            lost = None if task is tasks[-1] else before - task.select_score(model)
            results.append(SearchResult(slot, cell, model, curve, forgotten=lost))
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

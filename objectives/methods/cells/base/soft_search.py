"""Base of the searches by gradient: alpha descends while the super-net learns (Liu et al. 2019)."""

# Before each step of the weights on a batch of train, alpha takes one on a batch of alpha: down the
# gradient of the task's loss plus lambda times the FLOPs hinge. Its F, which decides the side, are
# the FLOPs of the cell that would be derived now; its E those that such a cell is expected to have.
# The second order takes that gradient at the weights after one step of gradient descent, as
# `unrolled_gradients` has it, at a rate that falls linearly from `learning_rate` to 0.

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from objectives.errors import PositiveFloat, check_ranges
from objectives.methods.cells.base.choosing import Aimed, ChosenCell, hinge
from objectives.methods.cells.base.learning import answers_loss
from objectives.methods.cells.base.super_net import SuperNet, Weights
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.soft_choices import SoftChoices, SoftSettings
from objectives.strategies.strategy import Choice, Places
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.training.fitting import steps_of, trainable
from objectives.training.losses import task_loss
from objectives.training.recorded import Tensors

# The gradient of alpha through a step of the weights: second-order DARTS (Liu et al. 2019).
#
# alpha should be good for the weights that it leads to, not for those of the moment. One plain
# step on the train loss stands for these: w' = w - xi grad_w L_train(w, alpha). The chain rule
# gives
#
#     grad_alpha L(w', alpha) - xi grad^2_{alpha, w} L_train(w, alpha) v, v = grad_w' L(w', alpha)
#
# and the second term is a difference of two gradients at w +- eps v, eps = 0.01 / |v|: exact
# where L_train is quadratic in w. xi = 0 is the first order. The paper's code unrolls the
# optimiser's momentum and weight decay as well, which its formula does not; here neither is.


BatchLoss = Callable[[Tensors, Tensors], Tensor]
"""A scalar loss of weights and alpha, by name."""

_REACH = 0.01
"""Norm of eps v, as in the paper's code."""


def unrolled_gradients(
    weights: Tensors, alpha: Tensors, train_loss: BatchLoss, alpha_loss: BatchLoss, step_size: float
) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of alpha, by name, and the loss of alpha at w'."""
    # `step_size` is xi, >= 0. The weights stay as they are.
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    if not step_size:
        loss = alpha_loss(weights, alpha)
        (direct,) = _gradients(loss, alpha)
        return direct, loss.detach()
    (downhill,) = _gradients(train_loss(weights, alpha), weights)
    ahead = {n: (w.detach() - step_size * downhill[n]).requires_grad_() for n, w in weights.items()}
    loss = alpha_loss(ahead, alpha)
    direct, direction = _gradients(loss, alpha, ahead)
    norm = torch.cat([v.flatten() for v in direction.values()]).norm()
    reach = _REACH / max(norm.item(), torch.finfo(norm.dtype).tiny)  # alpha may be elsewhere

    def of_train(sign: int) -> Tensors:
        moved = {n: w.detach() + sign * reach * direction[n] for n, w in weights.items()}
        (gradients,) = _gradients(train_loss(moved, alpha), alpha)
        return gradients

    above, below = of_train(+1), of_train(-1)
    return {
        name: gradient - step_size * (above[name] - below[name]) / (2 * reach)
        for name, gradient in direct.items()
    }, loss.detach()


def _gradients(loss: Tensor, *inputs: Tensors) -> list[dict[str, Tensor]]:
    """Gradients of each group of inputs, zero where the loss does not depend on them."""
    flat = [tensor for group in inputs for tensor in group.values()]
    gradients = iter(torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True))
    return [{name: next(gradients) for name in group} for group in inputs]


EdgeWeights = Mapping[str, Sequence[float]]
"""Weights of each edge, a place, in the order of its choices."""
Kept = list[tuple[str, Choice]]
"""Edges that enter a node, each with its operation; the strongest first."""


def strongest_edges(
    places: Places, weights: EdgeWeights, edges: Sequence[str], n: int, never: Collection[Choice]
) -> Kept:
    """The `n` edges into a node whose best operation weighs most, each with that operation."""
    # DARTS (Liu et al. 2019) keeps two of cells over sequences and one of recurrent cells, and
    # never "none"; AdaBERT keeps two, and may keep "zero". Of equals the first of `edges` and of
    # the choices comes first.
    best = [max(_pairs(places, weights, [edge], never), key=lambda pair: pair[0]) for edge in edges]
    return [pair_kept for _, pair_kept in sorted(best, key=lambda pair: -pair[0])[:n]]


def strongest_pairs(
    places: Places, weights: EdgeWeights, edges: Sequence[str], n: int, never: Collection[Choice]
) -> Kept:
    """The `n` heaviest pairs of an edge into a node and an operation (I-DARTS, Jiang 2019)."""
    # One edge may keep several operations, another none. Ties as in `strongest_edges`.
    pairs = _pairs(places, weights, edges, never)
    return [pair_kept for _, pair_kept in sorted(pairs, key=lambda pair: -pair[0])[:n]]


def _pairs(
    places: Places, weights: EdgeWeights, edges: Sequence[str], never: Collection[Choice]
) -> list[tuple[float, tuple[str, Choice]]]:
    return [
        (float(weight), (edge, choice))
        for edge in edges
        for choice, weight in zip(places[edge], weights[edge], strict=True)
        if choice not in never
    ]


@dataclass(frozen=True, kw_only=True)
class SoftSearch(Aimed):
    """Base: a subclass says which weights of alpha add up to one, and which cell is derived."""

    usual: ClassVar[tuple[str, ...]] = (
        *(NONE, "max3", "mean3", IDENTITY),
        *("separable3", "separable5", "atrous3", "atrous5"),
    )
    usual_recurrent: ClassVar[tuple[str, ...]] = (NONE, *Aimed.usual_recurrent)

    grad_rescale: PositiveFloat = 3e-3
    """kappa: step size of alpha's Adam. A factor on its gradient would cancel. > 0."""
    order: Literal[1, 2] = 1
    """1: alpha's gradient at the present weights. 2: after a step of descent of theirs, slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        acting = {*self.names} - {NONE}
        check_ranges(self, operations=(bool(acting), f"one or more beside '{NONE}'"))

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Places whose choices share one softmax; the others have one each."""
        return ()

    @abc.abstractmethod
    def derived(self, weights: EdgeWeights) -> Genotype:
        """The cell of weights over the choices of each of `space.all_places`."""

    def _steps_on(self, step: int) -> Collection[str] | None:
        """The places whose alpha learns at a step, which count from 1; None: all."""
        return None

    @property
    @abc.abstractmethod
    def space(self) -> GraphSpace:
        """The cells that it chooses from."""

    def _flops_loss(self, net: SuperNet, weights: Weights, problem: Problem) -> Tensor:
        """lambda times the hinge loss of the expected FLOPs: 0 while the derived cell is inside."""
        if self.target_ratio is None:
            return torch.zeros(())
        tensors = {place: torch.as_tensor(weight) for place, weight in weights.items()}
        numbers = {place: weight.tolist() for place, weight in tensors.items()}
        costs = net.costs(problem.seq_len)
        blocks = self.derived(self.space.weights(numbers)).blocks
        actual = costs[NONE] + sum(costs[name] for name in blocks)
        flops = net.expected_flops(self._without_none(tensors), problem.seq_len, self.kept)
        return self.flops_weight * hinge(flops, self.target_ratio, self.tolerance, problem, actual)

    def _without_none(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights on edges as if there were no `NONE`, which is never derived."""
        # Else a larger weight of `NONE` would lower the loss and leave the cell as it is.
        shared = dict(weights)
        groups = self.together or [(place,) for place in weights if ".operations[" in place]
        for group in groups:
            operations = {
                place: weights[place] * torch.tensor([name != NONE for name in names])
                for place, names in self.space.places.items()
                if place in group
            }
            total = sum(weight.sum() for weight in operations.values())
            shared |= {place: weight / total for place, weight in operations.items()}
        return shared

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        net = self._super_net(problem, seed)
        settings = SoftSettings(together=self.together, learning_rate=self.grad_rescale)
        soft = SoftChoices(self.space.places, seed, settings)
        steps = steps_of(problem, self.search_epochs, self.batch_size)
        batches = problem.alpha.shuffled(self.batch_size, seed, problem.device)

        def loss(batch: Batch, step: int) -> Tensor:
            rate = self.learning_rate * (1 - (step - 1) / steps) if self.order == 2 else 0.0
            numbers, alpha_batch = soft.weights(), next(batches)

            def logits(weights: Tensors, rows: Batch) -> Tensor:
                logits_BC: Tensor = functional_call(
                    net, dict(weights), (rows.inputs, numbers)
                ).logits
                return logits_BC

            def of_train(weights: Tensors, _: Tensors) -> Tensor:
                return answers_loss(logits(weights, batch), batch, problem)

            def of_alpha(weights: Tensors, _: Tensors) -> Tensor:
                answers = task_loss(logits(weights, alpha_batch)[None], alpha_batch.labels).sum()
                return answers + self._flops_loss(net, numbers, problem).to(answers.device)

            gradients, _ = unrolled_gradients(trainable(net), soft.alpha, of_train, of_alpha, rate)
            wanted = self._steps_on(step)
            soft.learn({n: g for n, g in gradients.items() if wanted is None or n in wanted})
            fixed = {place: weights.detach() for place, weights in soft.weights().items()}
            return answers_loss(net(batch.inputs, fixed).logits, batch, problem)

        curve = self._train(problem, net, loss, self.search_epochs, "search", seed, progress)
        numbers = {place: weights.tolist() for place, weights in soft.weights().items()}
        return ChosenCell(self.derived(self.space.weights(numbers)), curve)


def heaviest(
    space: GraphSpace, weights: EdgeWeights, edges: int, never: Collection[Choice]
) -> dict[str, Choice]:
    """Choices that keep this many `strongest_edges` of each node; all others are `NONE`."""
    choices: dict[str, Choice] = dict.fromkeys(space.places, NONE)
    for node in range(space.nodes):
        edges_of_node = space.operations_of(node)
        choices |= dict.fromkeys(edges_of_node, NONE)  # a place of one operation is no choice
        choices.update(strongest_edges(space.all_places, weights, edges_of_node, edges, never))
    return choices

"""ENAS (Pham et al. 2018): a controller draws cells, and all of them share one super-net."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from objectives.errors import NonNegativeFloat, PositiveFloat, PositiveInt
from objectives.methods.cells.base.choosing import Aimed, ChosenCell, scored
from objectives.methods.cells.base.learning import answers_loss
from objectives.methods.cells.base.super_net import SuperNet
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.strategies.controller import Controller, ControllerSettings
from objectives.students.cells.graph import IDENTITY
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.training.fitting import steps_of
from objectives.training.scoring import all_alpha, best_of

# After each pass over train, in which each step trains a cell of its own draw, the controller
# learns by REINFORCE from the scores of cells that it draws, each on one batch of alpha. In the
# end it draws candidates, all are scored on the same rows, and the best is trained again. With
# several tasks (MAS) each has a head of its own; a loss and a score are means over the tasks.


@dataclass(frozen=True, kw_only=True)
class Enas(Aimed):
    """Search by a controller over the cells of a super-net."""

    usual: ClassVar[tuple[str, ...]] = (IDENTITY, "separable3", "separable5", "max3", "mean3")

    edges: PositiveInt | None = None
    """Inputs of each node; None: as in the paper 2, or 1 in a recurrent cell. >= 1."""
    rewards: PositiveInt = 100
    """Cells that the controller learns from after each pass. The code has 500. >= 1."""
    candidates: PositiveInt = 100
    """Cells of which the best is chosen. >= 1."""
    grad_rescale: PositiveFloat = 3.5e-4
    """kappa: step size of the controller's Adam. > 0."""
    entropy_weight: NonNegativeFloat = 1e-4
    """Weight of the entropy of the controller's draws in its loss. >= 0."""

    @property
    def space(self) -> GraphSpace:
        """States before it that each node reads; the output is of those that no node reads."""
        edges = self.edges or (1 if self.recurrent else 2)
        return GraphSpace(nodes=self.nodes, operations=self.names, edges=edges)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        net = self._super_net(problem, seed)
        nets = self._with_heads(net, problem, seed)
        choices, curve = self._drawn(nets, (problem, *problem.beside), seed, progress)
        return ChosenCell(net.genotype(choices), curve)

    def _with_heads(self, net: SuperNet, problem: Problem, seed: int) -> list[SuperNet]:
        """The super-net, and one for each task beside: a head of its own, all else is shared."""
        nets = [net, *(self._super_net(task, seed) for task in problem.beside)]
        for task_net in nets[1:]:
            task_net.share(net)
        return nets

    def _drawn(
        self, nets: Sequence[SuperNet], tasks: Sequence[Problem], seed: int, progress: Progress
    ) -> tuple[Mapping[str, Any], list[CurvePoint]]:
        """Train super-nets of shared weights, one a task, and let the controller choose a cell."""
        first = tasks[0]
        rate, bonus = self.grad_rescale, self.entropy_weight
        settings = ControllerSettings(learning_rate=rate, entropy_weight=bonus)
        controller = Controller(self.space.places, seed, settings)
        steps = steps_of(first, self.search_epochs, self.batch_size)
        rounds = max(1, round(self.search_epochs))
        size = self.batch_size
        alpha = [task.alpha.shuffled(size, seed, task.device) for task in tasks]
        train = [task.train.shuffled(size, seed, task.device) for task in tasks[1:]]

        def loss(batch: Batch, step: int) -> Tensor:
            if step * rounds // steps > (step - 1) * rounds // steps:
                for candidate in controller.propose(self.rewards):
                    rows = [[next(batches)] for batches in alpha]
                    controller.learn([*self._scored(nets, [candidate], rows, tasks)])
            [drawn] = controller.propose(1)
            weights = self.space.one_hot(drawn)
            of_tasks = zip(nets, (batch, *map(next, train)), tasks, strict=True)
            losses = [answers_loss(n(b.inputs, weights).logits, b, t) for n, b, t in of_tasks]
            return torch.stack(losses).mean()

        every = nn.ModuleList(nets)
        curve = self._train(first, every, loss, self.search_epochs, "search", seed, progress)
        drawn = controller.propose(self.candidates)
        pairs = self._scored(nets, drawn, [all_alpha(task) for task in tasks], tasks)
        return best_of(pairs, len(drawn), progress), curve

    def _scored(
        self,
        nets: Sequence[SuperNet],
        candidates: Sequence[Mapping[str, Any]],
        rows: Sequence[Sequence[Batch]],
        tasks: Sequence[Problem],
    ) -> Iterator[tuple[Mapping[str, Any], float]]:
        """Cells with the means over the tasks of their scores on rows of each."""
        of_tasks = zip(nets, rows, tasks, strict=True)
        scores = [scored(self, net, candidates, batches, task) for net, batches, task in of_tasks]
        for pairs in zip(*scores, strict=True):
            yield pairs[0][0], fmean(score for _, score in pairs)

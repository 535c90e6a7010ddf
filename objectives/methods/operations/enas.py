"""ENAS (Pham et al. 2018): a controller draws cells, and all of them share one super-net.

After each pass over train, in which each step trains a cell of its own draw, the controller learns
by REINFORCE from the scores of cells that it draws, each on one batch of alpha. In the end it draws
candidates, all are scored on the same rows, and the best is trained anew.

What differs from the paper's code: the rows are texts and the super-net learns from the teacher's
answers; a score is exp(-loss), where the code has the accuracy, less the FLOPs loss; all
candidates meet the same rows of alpha, there one batch each. An edge has weights of its own for
each operation, whatever state it reads, and norms what it reads. A recurrent cell begins with a
tanh, which the paper chooses. The entropy counts, as in one of the code's two modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from objectives.errors import check_ranges
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.aimed_search import EitherWay, all_alpha, best_of, scored
from objectives.strategies.places.controller import Controller, ControllerSettings
from objectives.strategies.super_net_search import Chosen, SuperNetSearch, alpha_batches
from objectives.students.cells.graph import IDENTITY
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.weights.cells import answers_loss, steps_of
from objectives.weights.super_nets.super_net import SuperNet


@dataclass(frozen=True, kw_only=True)
class Enas(EitherWay, SuperNetSearch):
    """Search by a controller over the cells of a super-net."""

    usual: ClassVar[tuple[str, ...]] = (IDENTITY, "separable3", "separable5", "max3", "mean3")

    edges: int | None = None
    """Inputs of each node; None: as in the paper 2, or 1 in a recurrent cell. >= 1."""
    rewards: int = 100
    """Cells that the controller learns from after each pass. The code has 500. >= 1."""
    candidates: int = 100
    """Cells of which the best is chosen. >= 1."""
    grad_rescale: float = 3.5e-4
    """kappa: step size of the controller's Adam. > 0."""
    entropy_weight: float = 1e-4
    """Of the entropy of its draws, in its loss. >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            edges=(self.edges is None or self.edges >= 1, ">= 1, or None"),
            rewards=(self.rewards >= 1, ">= 1"),
            candidates=(self.candidates >= 1, ">= 1"),
            grad_rescale=(self.grad_rescale > 0, "> 0"),
            entropy_weight=(self.entropy_weight >= 0, ">= 0"),
        )

    @property
    def space(self) -> GraphSpace:
        """Each node reads so many of the states before it; the output is of those nobody reads."""
        edges = self.edges or (1 if self.recurrent else 2)
        return GraphSpace(nodes=self.nodes, operations=self.names, edges=edges)

    def chosen(self, net: SuperNet, problem: Problem, seed: int, progress: Progress) -> Chosen:
        """By the controller, after as many rounds as passes, but at least one."""
        settings = ControllerSettings(
            learning_rate=self.grad_rescale, entropy_weight=self.entropy_weight
        )
        controller = Controller(self.space.places, seed, settings)
        steps = steps_of(problem, self.search_epochs, self.batch_size)
        batches = alpha_batches(self, problem, seed)
        rounds = max(1, round(self.search_epochs))

        def loss(batch: Batch, step: int) -> Tensor:
            if step * rounds // steps > (step - 1) * rounds // steps:
                for one in controller.propose(self.rewards):
                    controller.learn([*scored(self, net, [one], [next(batches)], problem)])
            [own] = controller.propose(1)
            weights = self.space.one_hot(own)
            return answers_loss(net(batch.inputs, weights).logits, batch, problem)

        curve = self._train(problem, net, loss, self.search_epochs, "search", seed, progress)
        drawn = controller.propose(self.candidates)
        pairs = scored(self, net, drawn, all_alpha(problem), problem)
        return Chosen(net.genotype(best_of(pairs, len(drawn), progress)), curve)

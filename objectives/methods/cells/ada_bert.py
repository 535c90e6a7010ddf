"""AdaBERT (Chen et al. 2020): cells of convolutions, and how many of them, distilled from BERT.

All cells share one alpha, and a second one chooses their number N. Both are drawn by Gumbel noise,
one-hot forward and soft backward, at a temperature that falls. The weights and alpha learn on the
same batch from"""

#     (1 - gamma) CE(labels) + gamma mean over m <= N of CE(probe of layer m floor(L / (N + 1)))
#         + beta (N / K) mean over edges of the share of their operation in all operations' FLOPs,
#
# where a probe says what a layer of the teacher knows of the answer. Then each node keeps its two
# edges of largest weight, whatever their operations, and the model is trained further.

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import NonNegativeFloat, PositiveFloat, PositiveInt, Share, UserError
from objectives.methods.cells.base.choosing import CellChoice, ChosenCell
from objectives.methods.cells.base.soft_search import EdgeWeights, heaviest
from objectives.methods.cells.base.super_net import SuperNet
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.soft_choices import ADABERT, SoftChoices
from objectives.strategies.strategy import Choice
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.training.fitting import steps_of
from objectives.training.losses import prediction_loss, task_loss
from objectives.training.teacher_states import keep_states, teacher_trace

_KEPT = 2
"""Edges of each node."""
_RIDGE = 1e-3
"""Damping of the probes' least squares, beside features of mean square about 1."""


@dataclass(frozen=True, kw_only=True)
class AdaBert(CellChoice):
    """Search for a cell and the number of cells, with the teacher's layers as hints."""

    operations: tuple[str, ...] = (
        *("plain3", "plain5", "plain7", "atrous3", "atrous5", "atrous7"),
        *("max3", "mean3", IDENTITY, NONE),
    )
    """Operations on an edge; `NONE` may be chosen."""
    nodes: int = 3
    """Nodes of a cell. >= 1."""
    most_cells: PositiveInt = 4
    """K: at most this many cells. The paper has 8. >= 1."""
    hints: Share = 0.8
    """gamma: weight of the probes beside the labels. In [0, 1]."""
    flops_weight: NonNegativeFloat = 4.0
    """lambda: weight of the FLOPs loss L_E beside that of the answers (the paper's beta). >= 0."""
    grad_rescale: PositiveFloat = 1e-3
    """kappa: step size of alpha's Adam; 1e-4 in the paper, whose search has 18,000 steps. > 0."""

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        super().check_shapes(student, teacher)
        layers = teacher.num_hidden_layers
        if self.most_cells >= layers:
            raise UserError(
                f"AdaBert.most_cells is {self.most_cells}; the teacher has {layers} layers, so "
                f"give {layers - 1} or less"
            )

    @property
    def space(self) -> GraphSpace:
        """Up to K cells that read the last two; one edge from each state before a node."""
        cells, names = tuple(range(self.most_cells + 1)), self.operations
        return GraphSpace(
            nodes=self.nodes, operations=names, edges=0, inputs=2, output="all", cells=cells
        )

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        """Choose by the largest weights; the student begins at the super-net's."""
        net = self._super_net(problem, seed)
        settings = replace(ADABERT, learning_rate=self.grad_rescale)
        soft = SoftChoices(self.space.places, seed, settings)
        steps = steps_of(problem, self.search_epochs, self.batch_size)
        probes = probes_of(problem, progress)

        def loss(batch: Batch, step: int) -> Tensor:
            if step > 1:  # the gradients of the batch before, whose step the weights have taken
                soft.learn({place: a.grad for place, a in soft.alpha.items() if a.grad is not None})
            for alpha in soft.alpha.values():
                alpha.grad = None
            weights, said_BLC = soft.weights((step - 1) / steps), probes[batch.rows]
            mask_BS1 = batch.attention_mask[..., None].float()
            states = net(batch.inputs, weights, every=True).hidden_states
            logits = [net.plain.classified(state, mask_BS1) for state in states]
            each: list[Tensor] = []
            for cells, logits_BC in enumerate(logits):
                hinted = [
                    prediction_loss(
                        logits[state][None], said_BLC[:, layer], several=problem.train.several
                    ).sum()
                    for state, layer in enumerate(probe_layers(cells, said_BLC.shape[1] - 1))
                ]
                labels = task_loss(logits_BC[None], batch.labels).sum()
                each.append((1 - self.hints) * labels + self.hints * torch.stack(hinted).mean())
            depth = weights["cells"].to(each[0].device)
            answers: Tensor = depth @ torch.stack(each)
            return answers + self.flops_weight * self._efficiency(net, weights, problem)

        curve = self._train(problem, net, loss, self.search_epochs, "search", seed, progress)
        last = soft.temperature(1.0)
        numbers = {place: (a / last).softmax(-1).tolist() for place, a in soft.alpha.items()}
        choices = self.derived(self.space.weights(numbers))
        return ChosenCell(net.genotype(choices), curve, net.extract(choices))

    def derived(self, weights: EdgeWeights) -> Mapping[str, Choice]:
        """The two edges of each node whose best operation weighs most, and the number of cells."""
        choices, cells = heaviest(self.space, weights, _KEPT, never=()), weights["cells"]
        return {**choices, "cells": max(range(len(cells)), key=cells.__getitem__)}

    def _efficiency(self, net: SuperNet, weights: Mapping[str, Tensor], problem: Problem) -> Tensor:
        """L_E, the last term at the top of this file without beta: a scalar, in [0, 1]."""
        flops = net.costs(problem.seq_len)
        total = sum(flops[name] for name in self.operations if name != NONE) or 1
        shares = torch.tensor([0.0 if n == NONE else flops[n] / total for n in self.operations])
        edges = [numbers for place, numbers in weights.items() if "operations" in place]
        cells = weights["cells"] @ torch.arange(self.most_cells + 1.0)
        return cells / self.most_cells * torch.stack([numbers @ shares for numbers in edges]).mean()


def probe_layers(cells: int, layers: int) -> list[int]:
    """The teacher's layer whose probe each state 0 to N of a model of N cells learns from."""
    return [state * (layers // (cells + 1)) for state in range(cells + 1)]


def probes_of(problem: Problem, progress: Progress) -> Tensor:
    """Answers of the probes of the teacher's L layers to the rows of train, (rows, L + 1, C)."""

    def make() -> Tensor:
        keep_states(problem, torch.float32, progress)
        firsts, rows = [], []
        for batch in problem.train.in_order(64, problem.device):
            trace = teacher_trace(problem, batch, torch.float32, with_scores=False)
            firsts.append(torch.stack([state[0, :, 0].float() for state in trace.hidden], 1))
            rows.append(batch.rows)
        return least_squares(torch.cat(firsts)[torch.cat(rows).argsort()], problem.teacher_logits)

    return problem.once("probes", make)


def least_squares(features_BLD: Tensor, wanted_BC: Tensor) -> Tensor:
    """Answers to features by the nearest linear map of each layer, with a constant: (B, L, C)."""
    middle, spread = features_BLD.mean(0), features_BLD.std(0).clamp_min(1e-6)
    known_LBD = ((features_BLD - middle) / spread).transpose(0, 1)
    known_LBD = torch.cat([known_LBD, torch.ones_like(known_LBD[..., :1])], -1)
    square_LDD = known_LBD.mT @ known_LBD / len(wanted_BC)
    ridge = _RIDGE * torch.eye(square_LDD.shape[-1], device=square_LDD.device)
    maps = torch.linalg.solve(square_LDD + ridge, known_LBD.mT @ wanted_BC / len(wanted_BC))
    said_BLC: Tensor = (known_LBD @ maps).transpose(0, 1)
    return said_BLC

"""Base of the searches whose choice is drawn towards a share of the FLOPs.

R, t and lambda act through the hinge loss of `measures.budget`, on the share that a cell has of the
FLOPs of the model of ratio 1.
"""

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from objectives.errors import NonNegativeFloat, PositiveFloat, PositiveInt, ShareBelowOne
from objectives.measures.budget import hinge_loss
from objectives.measures.evaluate import EVALUATION_BATCH
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.super_net_search import CellChoice
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import NONE
from objectives.text.data import Batch
from objectives.training.losses import task_loss
from objectives.weights.super_nets.super_net import SuperNet, Weights


@dataclass(frozen=True, kw_only=True)
class Aimed(CellChoice):
    """Base of those whose choice is drawn towards a share of the FLOPs."""

    usual: ClassVar[tuple[str, ...]]
    """The operations of cells that read the whole text."""
    usual_recurrent: ClassVar[tuple[str, ...]] = ("tanh", "relu", "sigmoid", "linear")
    """Those of recurrent cells."""

    operations: tuple[str, ...] | None = None
    """What may stand on an edge; None: what the source of the method has, `usual` or
    `usual_recurrent`."""
    nodes: PositiveInt = 3
    """Of a cell. >= 1."""
    target_ratio: PositiveFloat | None = None
    """R: the share of the FLOPs of ratio 1 that the choice is drawn to, whatever the study counts;
    None: no target. Two convolutions of width 128 have 0.01 of a BERT of 6 layers. > 0."""
    tolerance: ShareBelowOne = 0.1
    """t: inside [(1 - t) R, (1 + t) R] the FLOPs loss is 0. In [0, 1)."""
    flops_weight: NonNegativeFloat = 0.1
    """lambda: weight of the FLOPs loss beside that of the answers. >= 0."""

    @property
    @abc.abstractmethod
    def token_by_token(self) -> bool:
        """Whether its cells are recurrent."""

    @property
    def kept(self) -> float:
        """What the cell that is derived keeps of the FLOPs of all weighted operations, about."""
        return 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that it chooses from."""
        if self.operations is not None:
            return self.operations
        return self.usual_recurrent if self.token_by_token else self.usual

    @property
    def base(self) -> Genotype:
        """A cell without operations, recurrent or not."""
        return Genotype(self.width, recurrent=self.token_by_token)

    def idle(self) -> dict[str, str]:
        """Without a target what acts with it."""
        idle = dict.fromkeys(("tolerance", "flops_weight"), "target_ratio is None")
        return idle if self.target_ratio is None else {}

    def _flops_loss(self, net: SuperNet, weights: Weights, problem: Problem) -> Tensor:
        """lambda times the hinge loss of what the cell of some weights is expected to cost: a
        scalar, 0 in the band and where there is no target."""
        if self.target_ratio is None:
            return torch.zeros(())
        fixed = net.costs(problem.seq_len)[NONE]
        weighted = net.expected_flops(weights, problem.seq_len) - fixed
        flops = fixed + self.kept * weighted
        return self.flops_weight * hinge(flops, self.target_ratio, self.tolerance, problem)


def hinge(flops: float | Tensor, target_ratio: float, tolerance: float, problem: Problem) -> Tensor:
    """The hinge loss of so many FLOPs of one text, as shares of R: a scalar, 0 in the band."""
    share = torch.as_tensor(flops, dtype=torch.float64).view(1) / problem.flops_full / target_ratio
    one, around = torch.ones_like(share), torch.full_like(share, tolerance)
    return hinge_loss(share, share.detach(), one, around).float().sum()


@dataclass(frozen=True, kw_only=True)
class EitherWay(Aimed):
    """Base of those whose cells may read the whole text or token by token."""

    recurrent: bool = False
    """Apply the cell token by token: see `CellSearch.recurrent`."""

    @property
    def token_by_token(self) -> bool:
        return self.recurrent


def scored(
    method: Aimed,
    net: SuperNet,
    candidates: Iterable[Mapping[str, Any]],
    rows: Sequence[Batch],
    problem: Problem,
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Cells with their scores by the super-net's weights: that of the answers, less lambda times
    the FLOPs loss at what the cell costs."""
    for choices in candidates:
        weights = net.space.one_hot(choices)
        score = answer_score(partial(net, weights=weights), rows, problem)
        yield choices, score - float(method._flops_loss(net, weights, problem))


def answer_score(
    model: Callable[[Mapping[str, Tensor]], Any], rows: Sequence[Batch], problem: Problem
) -> float:
    """`logits_score` of a model's answers to the inputs of rows of alpha."""
    return logits_score(lambda batch: model(batch.inputs).logits, rows, problem)


@torch.no_grad()
def logits_score(
    logits: Callable[[Batch], Tensor], rows: Sequence[Batch], problem: Problem
) -> float:
    """exp(-L), L being the task's loss of logits (B, C) of rows of alpha (of numbers as a share of
    their variance); 0 where L is not a number."""
    numbers = problem.alpha.labels
    unit = max(float(numbers.var()), 1e-12) if problem.alpha.regression else 1.0
    losses = [len(batch.rows) * task_loss(logits(batch)[None], batch.labels) for batch in rows]
    loss = float(sum(losses)) / sum(len(batch.rows) for batch in rows) / unit
    return 0.0 if math.isnan(loss) else math.exp(-loss)


def best_of(
    pairs: Iterable[tuple[Mapping[str, Any], float]], count: int, progress: Progress
) -> Mapping[str, Any]:
    """The cell of the highest score of so many; of equals the first."""
    progress.begin("choose", count)
    found = []
    for pair in pairs:
        found.append(pair)
        progress.advance()
    return max(found, key=lambda pair: pair[1])[0]


def all_alpha(problem: Problem) -> list[Batch]:
    """Every row of the alpha split once."""
    return list(problem.alpha.in_order(EVALUATION_BATCH, problem.device))

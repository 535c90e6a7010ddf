"""Base classes of the methods that choose a cell and then train it alone.

A trial is a whole search. Weights learn from the teacher's answers to train, the choice from alpha.
"""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from objectives.errors import NonNegativeFloat, PositiveFloat, PositiveInt, ShareBelowOne, UserError
from objectives.measures.budget import hinge_loss
from objectives.methods.cells.base.learning import CellMethod, finished, loss_of, new_cell
from objectives.methods.cells.base.shared_cells import new_net
from objectives.methods.cells.base.super_net import SuperNet, Weights
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure, SearchResult, not_finite
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype, check_operations, check_position_wise
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.training.scoring import answer_score


class ChosenCell(NamedTuple):
    """The choice of a search. Where a loss was not finite only its curve counts."""

    genotype: Genotype
    curve: Sequence[CurvePoint]
    student: CellForSequenceClassification | None = None
    """Where the cell's own training begins; None: at new weights."""


@dataclass(frozen=True, kw_only=True)
class CellChoice(CellMethod):
    """Base of the methods that choose a cell, however they do, and then train it alone."""

    search_epochs: PositiveFloat = 4
    """Passes over the train split while it searches. > 0."""
    epochs: PositiveFloat = 8
    """Passes over it for the chosen cell alone. > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space is None:
            return
        check_operations(self.space.operations)
        if not any("cells" not in place for place in self.space.places):
            name = type(self).__name__
            raise UserError(f"{name}.operations leaves nothing to choose; name two or more")
        if self.base.recurrent:
            check_position_wise(self.space.operations)

    @property
    def space(self) -> GraphSpace | None:
        """The cells of the super-net; None where the search has no `SuperNet`."""
        return None

    @property
    def base(self) -> Genotype:
        """A cell without operations, of the sizes of all cells."""
        return Genotype(self.width)

    @abc.abstractmethod
    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        """Choose a cell."""

    def scale_epochs(self, share: float) -> Self:
        return replace(self, search_epochs=self.search_epochs * share, epochs=self.epochs * share)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        for slot, member in enumerate(members):
            yield member._outcome(slot, problem, seed, progress)

    def _outcome(self, slot: int, problem: Problem, seed: int, progress: Progress) -> Outcome:
        try:
            chosen = self._searched(problem, seed, progress)
        except FloatingPointError as error:
            return SearchFailure(slot, str(error))
        if failure := not_finite(slot, chosen.curve):
            return failure
        return self._learnt(slot, chosen, problem, seed, progress)

    def _learnt(
        self, slot: int, chosen: ChosenCell, problem: Problem, seed: int, progress: Progress
    ) -> Outcome:
        """Train the chosen cell alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            student = chosen.student or new_cell(chosen.genotype, problem)
        student.train()
        loss = loss_of(student, problem)
        curve = self._train(problem, student, loss, self.epochs, "learn", seed, progress)
        return not_finite(slot, curve) or SearchResult(
            slot, chosen.genotype, finished(student), [*chosen.curve, *curve]
        )

    def _super_net(self, problem: Problem, seed: int) -> SuperNet:
        assert self.space is not None
        return new_net(self.space, self.base, problem, seed)


@dataclass(frozen=True, kw_only=True)
class Aimed(CellChoice):
    """Base of the methods whose choice is drawn towards a share of the FLOPs."""

    # R, t and lambda act through the hinge loss of `measures.budget`, on the share that a cell has
    # of the FLOPs of the model of ratio 1.

    usual: ClassVar[tuple[str, ...]]
    """The operations of cells that read the whole text."""
    usual_recurrent: ClassVar[tuple[str, ...]] = ("tanh", "relu", "sigmoid", "linear")
    """The operations of recurrent cells."""

    operations: tuple[str, ...] | None = None
    """Operations on an edge; None: those of the method's paper, `usual` or `usual_recurrent`."""
    nodes: PositiveInt = 3
    """Nodes of a cell. >= 1."""
    recurrent: bool = False
    """Apply the cell token by token: see `CellSearch.recurrent`."""
    target_ratio: PositiveFloat | None = None
    """R: the share of the FLOPs of ratio 1 that the choice is drawn to, whatever the study counts;
    None: no target. Two convolutions of width 128 have 0.01 of a BERT of 6 layers. > 0."""
    tolerance: ShareBelowOne = 0.1
    """t: inside [(1 - t) R, (1 + t) R] the FLOPs loss is 0. In [0, 1)."""
    flops_weight: NonNegativeFloat = 0.1
    """lambda: weight of the FLOPs loss beside that of the answers. >= 0."""

    @property
    def kept(self) -> float:
        """The share of the FLOPs of all weighted operations that the derived cell has, about."""
        return 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that it chooses from."""
        if self.operations is not None:
            return self.operations
        return self.usual_recurrent if self.recurrent else self.usual

    @property
    def base(self) -> Genotype:
        """A cell without operations, recurrent or not."""
        return Genotype(self.width, recurrent=self.recurrent)

    def inactive(self) -> dict[str, str]:
        inactive = dict.fromkeys(("tolerance", "flops_weight"), "target_ratio is None")
        return inactive if self.target_ratio is None else {}

    def _flops_loss(self, net: SuperNet, weights: Weights, problem: Problem) -> Tensor:
        """lambda times the hinge loss of the expected FLOPs of a cell: a scalar, 0 in the band."""
        if self.target_ratio is None:
            return torch.zeros(())
        flops = net.expected_flops(weights, problem.seq_len, self.kept)
        return self.flops_weight * hinge(flops, self.target_ratio, self.tolerance, problem)


def hinge(
    flops: float | Tensor,
    target_ratio: float,
    tolerance: float,
    problem: Problem,
    actual: float | None = None,
) -> Tensor:
    """Hinge loss of FLOPs as shares of R, 0 in the band; `actual`, or they, decide its side."""
    share = torch.as_tensor(flops, dtype=torch.float64).view(1) / problem.flops_full / target_ratio
    target, band = torch.ones_like(share), torch.full_like(share, tolerance)
    side = share.detach()
    if actual is not None:
        side = torch.full_like(side, actual / problem.flops_full / target_ratio)
    return hinge_loss(share, side, target, band).float().sum()


def scored(
    method: Aimed,
    net: SuperNet,
    candidates: Iterable[Mapping[str, Any]],
    rows: Sequence[Batch],
    problem: Problem,
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Cells with the scores of their answers by the super-net's weights, less the FLOPs loss."""
    for choices in candidates:
        weights = net.space.one_hot(choices)
        score = answer_score(partial(net, weights=weights), rows, problem)
        yield choices, score - float(method._flops_loss(net, weights, problem))

"""Base of the methods that choose a cell with a super-net: search, then train the cell alone.

A trial is a whole search. The super-net and the chosen cell learn from the teacher's answers to
train, the choice from alpha. R, t and lambda act through the hinge loss of `measures.budget`, on
the share that a cell has of the teacher's FLOPs.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from objectives.device import to_device
from objectives.errors import check_ranges
from objectives.measures.budget import hinge_loss
from objectives.measures.cost import Flops
from objectives.measures.evaluate import EVALUATION_BATCH
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure, SearchMethod, SearchResult
from objectives.students.bert.cutting import shape_of
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype, check_names, check_position_wise
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace
from objectives.students.cells.operations import OPERATIONS
from objectives.text.data import Batch
from objectives.training.losses import task_loss
from objectives.weights.cells import answers_loss, finished, new_cell, train_cells
from objectives.weights.independent import not_finite
from objectives.weights.super_net import SuperNet


class Chosen(NamedTuple):
    """What a search found."""

    genotype: Genotype
    curve: Sequence[CurvePoint]
    """Of the super-net's training."""
    student: CellForSequenceClassification | None = None
    """Where the cell's own training begins; None: at new weights."""


@dataclass(frozen=True, kw_only=True)
class SuperNetSearch(SearchMethod):
    """Base: a subclass says which cells there are (`space`) and how one is chosen (`chosen`)."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    width: int = 128
    """D, dimensions of the hidden states: a multiple of 16."""
    search_epochs: float = 4
    """Passes over the train split while the super-net learns. > 0."""
    epochs: float = 8
    """Passes over it for the chosen cell alone. > 0."""
    learning_rate: float = 3e-3
    """Peak of AdamW's rate in both trainings, after 10% of warm-up; then it falls linearly to 0.
    > 0."""
    batch_size: int = 32
    """Sequences of a step. >= 1."""

    @property
    @abc.abstractmethod
    def space(self) -> GraphSpace:
        """The cells that it chooses from."""

    @abc.abstractmethod
    def chosen(self, net: SuperNet, problem: Problem, seed: int, progress: Progress) -> Chosen:
        """Train the super-net and choose a cell.

        Args:
            net: of `space`.
            problem: what the method works on.
            seed: of the study.
            progress: what it tells of its run.

        Returns:
            The choice. Where a loss was not finite only its curve counts.
        """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            search_epochs=(self.search_epochs > 0, "> 0"),
            epochs=(self.epochs > 0, "> 0"),
            learning_rate=(self.learning_rate > 0, "> 0"),
            batch_size=(self.batch_size >= 1, ">= 1"),
        )
        check_names("operation", self.space.operations, [*OPERATIONS, IDENTITY, NONE])
        if self.base.recurrent:
            check_position_wise(self.space.operations)

    @property
    def base(self) -> Genotype:
        """A cell without operations: the sizes of all."""
        return Genotype(self.width)

    def shortened(self, share: float) -> Self:
        """With this share of the epochs of the search and of those after it."""
        return replace(self, search_epochs=self.search_epochs * share, epochs=self.epochs * share)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search with each member, one after another."""
        for slot, member in enumerate(members):
            yield member._found(slot, problem, seed, progress)

    def _found(self, slot: int, problem: Problem, seed: int, progress: Progress) -> Outcome:
        try:
            net = self.super_net(problem, seed, progress)
        except FloatingPointError as error:
            return SearchFailure(slot, str(error))
        found = self.chosen(net, problem, seed, progress)
        if failure := not_finite(slot, found.curve):
            return failure
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            student = found.student or new_cell(found.genotype, problem)
        student.train()
        curve = train_cells(
            problem,
            {name: weight for name, weight in student.named_parameters() if weight.requires_grad},
            lambda batch, _: answers_loss(student(**batch.inputs).logits, batch, problem),
            **self.training(self.epochs, seed, progress),
        )
        return not_finite(slot, curve) or SearchResult(
            slot=slot,
            architecture=found.genotype,
            model=finished(student),
            curve=[*found.curve, *curve],
        )

    def super_net(self, problem: Problem, seed: int, progress: Progress) -> SuperNet:
        """The super-net at the start of the search.

        Args:
            problem: what the method works on.
            seed: of the study.
            progress: what it tells of its run.

        Returns:
            A new one of this trial.

        Raises:
            FloatingPointError: where it is trained already, and a loss was not finite.
        """
        del progress
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = SuperNet(self.space, new_cell(self.base, problem))
        return to_device(net, problem.device)

    def training(self, epochs: float, seed: int, progress: Progress) -> dict[str, Any]:
        """What `train_cells` is told by its fields.

        Args:
            epochs: passes over the train split.
            seed: of the study.
            progress: what it tells of its run.

        Returns:
            Arguments by their names.
        """
        names = ("learning_rate", "batch_size")
        own = {name: getattr(self, name) for name in names}
        return {**own, "epochs": epochs, "seed": seed, "progress": progress}


@dataclass(frozen=True, kw_only=True)
class Aimed(SuperNetSearch):
    """Base of those whose choice is drawn towards a share of the FLOPs, among cells that read the
    whole text or, recurrent, token by token."""

    usual: ClassVar[tuple[str, ...]]
    """The operations of cells that read the whole text."""
    usual_recurrent: ClassVar[tuple[str, ...]] = ("tanh", "relu", "sigmoid", "linear")
    """Those of recurrent cells."""

    operations: tuple[str, ...] | None = None
    """What may stand on an edge; None: what the source of the method has, `usual` or
    `usual_recurrent`."""
    nodes: int = 3
    """Of a cell. >= 1."""
    recurrent: bool = False
    """Apply the cell token by token: see `CellSearch.recurrent`."""
    target_ratio: float | None = None
    """R: the share of the teacher's FLOPs that the choice is drawn to, whatever the study counts;
    None: to none. Two convolutions of width 128 have 0.01 of a BERT of 6 layers. > 0."""
    tolerance: float = 0.1
    """t: inside [(1 - t) R, (1 + t) R] nothing draws. In [0, 1)."""
    flops_weight: float = 0.1
    """lambda: weight of the FLOPs loss beside that of the answers. >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            target_ratio=(self.target_ratio is None or self.target_ratio > 0, "> 0, or None"),
            tolerance=(0 <= self.tolerance < 1, "in [0, 1)"),
            flops_weight=(self.flops_weight >= 0, ">= 0"),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that it chooses from."""
        return self.operations or (self.usual_recurrent if self.recurrent else self.usual)

    @property
    def base(self) -> Genotype:
        """A cell without operations, recurrent or not."""
        return Genotype(self.width, recurrent=self.recurrent)

    def idle(self) -> dict[str, str]:
        """Without a target what acts with it."""
        idle = dict.fromkeys(("tolerance", "flops_weight"), "target_ratio is None")
        return idle if self.target_ratio is None else {}

    def flops_loss(self, flops: float | Tensor, problem: Problem) -> Tensor:
        """lambda times the hinge loss of so many FLOPs, as shares of R.

        Args:
            flops: of one text, expected or exact.
            problem: whose teacher has ratio 1.

        Returns:
            A scalar; 0 in the band, and where there is no target.
        """
        if self.target_ratio is None:
            return torch.zeros(())
        whole = Flops(shape_of(problem.teacher.config), problem.seq_len).full
        share = torch.as_tensor(flops, dtype=torch.float64).view(1) / whole / self.target_ratio
        one, tolerance = torch.ones_like(share), torch.full_like(share, self.tolerance)
        hinge = hinge_loss(share, share.detach(), one, tolerance)
        return self.flops_weight * hinge.float().sum()


@torch.no_grad()
def scored(
    method: Aimed,
    net: SuperNet,
    candidates: Iterable[Mapping[str, Any]],
    rows: Sequence[Batch],
    problem: Problem,
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Cells with their scores by the super-net's weights: exp(-L), L being the task's loss on rows
    of alpha, less lambda times the FLOPs loss at what the cell costs."""
    for choices in candidates:
        weights = method.space.one_hot(choices)
        losses = [
            len(batch.rows) * task_loss(net(batch.inputs, weights).logits[None], batch.labels)
            for batch in rows
        ]
        loss = float(sum(losses)) / sum(len(batch.rows) for batch in rows)
        flops = method.flops_loss(net.expected_flops(weights, problem.seq_len), problem)
        yield choices, math.exp(-loss) - float(flops)


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


def steps_of(method: SuperNetSearch, problem: Problem) -> int:
    """How many steps its super-net is trained."""
    return max(1, round(method.search_epochs * len(problem.train) / method.batch_size))


def a_pass(method: SuperNetSearch, problem: Problem) -> int:
    """The steps of a pass over the train split."""
    return math.ceil(len(problem.train) / method.batch_size)


def learnt(net: SuperNet) -> dict[str, Tensor]:
    """The weights of a super-net that learn."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def alpha_batches(method: SuperNetSearch, problem: Problem, seed: int) -> Iterator[Batch]:
    """Batches of the alpha split, for ever."""
    return problem.alpha.shuffled(method.batch_size, seed, problem.device)

"""Bases of the methods that choose a cell, most with a super-net: search, then train it alone.

A trial is a whole search. Weights learn from the teacher's answers to train, the choice from alpha.
"""

import abc
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from objectives.errors import PositiveFloat, PositiveInt, UserError
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure, SearchMethod, SearchResult
from objectives.strategies.places.derivation import EdgeWeights, strongest_edges
from objectives.strategies.places.strategy import Choice
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype, check_operations, check_position_wise
from objectives.students.cells.graph import NONE
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.weights.cells import finished, loss_of, new_cell, train_cells, trainable
from objectives.weights.independent import not_finite
from objectives.weights.shared_cells import new_net
from objectives.weights.super_nets.super_net import SuperNet


class Chosen(NamedTuple):
    """What a search found."""

    genotype: Genotype
    curve: Sequence[CurvePoint]
    """Of what was trained to choose."""
    student: CellForSequenceClassification | None = None
    """Where the cell's own training begins; None: at new weights."""


@dataclass(frozen=True, kw_only=True)
class CellMethod(SearchMethod):
    """Base of the methods whose students are cells: how large these are, and how they learn."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    width: int = 128
    """D, dimensions of the hidden states: a multiple of 16."""
    learning_rate: PositiveFloat = 3e-3
    """Peak of AdamW's rate in each training, after 10% of warm-up; then it falls linearly to 0.
    > 0."""
    batch_size: PositiveInt = 32
    """Sequences of a step. >= 1."""

    def _train(
        self,
        problem: Problem,
        module: nn.Module,
        loss: Callable[[Batch, int], Tensor],
        epochs: float,
        stage: str,
        seed: int,
        progress: Progress,
    ) -> list[CurvePoint]:
        """`train_cells` on the weights of a module, at the rate and batch size of the method."""
        return train_cells(
            problem,
            trainable(module),
            loss,
            epochs=epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            seed=seed,
            progress=progress,
            stage=stage,
        )


@dataclass(frozen=True, kw_only=True)
class CellChoice(CellMethod):
    """Base of the methods that choose a cell, however they do, and then train it alone."""

    search_epochs: PositiveFloat = 4
    """Passes over the train split while it searches. > 0."""
    epochs: PositiveFloat = 8
    """Passes over it for the chosen cell alone. > 0."""

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
            found = self._searched(problem, seed, progress)
        except FloatingPointError as error:
            return SearchFailure(slot, str(error))
        if failure := not_finite(slot, found.curve):
            return failure
        return self._learnt(slot, found, problem, seed, progress)

    def _learnt(
        self, slot: int, found: Chosen, problem: Problem, seed: int, progress: Progress
    ) -> Outcome:
        """The student that the chosen cell becomes in its own training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            student = found.student or new_cell(found.genotype, problem)
        student.train()
        loss = loss_of(student, problem)
        curve = self._train(problem, student, loss, self.epochs, "learn", seed, progress)
        return not_finite(slot, curve) or SearchResult(
            slot=slot,
            architecture=found.genotype,
            model=finished(student),
            curve=[*found.curve, *curve],
        )

    @abc.abstractmethod
    def _searched(self, problem: Problem, seed: int, progress: Progress) -> Chosen:
        """The choice. Where a loss was not finite only its curve counts."""


@dataclass(frozen=True, kw_only=True)
class SuperNetSearch(CellChoice):
    """Base: a subclass says which cells there are (`space`) and how one is chosen (`chosen`)."""

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
        check_operations(self.space.operations)
        if not any("cells" not in place for place in self.space.places):
            raise UserError(
                f"{type(self).__name__}.operations leaves nothing to choose; name two or more"
            )
        if self.base.recurrent:
            check_position_wise(self.space.operations)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> Chosen:
        return self.chosen(self._super_net(problem, seed, progress), problem, seed, progress)

    def _super_net(self, problem: Problem, seed: int, progress: Progress) -> SuperNet:
        """The super-net at the start of the search, by default a new one of this trial. Raises
        FloatingPointError where it is trained already, and a loss was not finite."""
        return new_net(self.space, self.base, problem, seed)


def heaviest(
    space: GraphSpace, weights: EdgeWeights, edges: int, never: Collection[Choice]
) -> dict[str, Choice]:
    """Choices that keep so many edges of each node, those whose best operation weighs most: see
    `strongest_edges`. All other operations are `NONE`."""
    choices: dict[str, Choice] = dict.fromkeys(space.places, NONE)
    for node in range(space.nodes):
        own = space.operations_of(node)
        choices.update(strongest_edges(space.all_places, weights, own, edges, never))
    return choices

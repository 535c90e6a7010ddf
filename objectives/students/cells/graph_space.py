"""Search space of cells: named places, each with its choices."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any, Literal

from objectives.errors import NonNegativeInt, PositiveInt, check_ranges, check_types
from objectives.students.cells.graph import COMBINATIONS, IDENTITY, NONE, Graph, Node
from objectives.students.cells.operations import READS, WINDOWS


@dataclass(frozen=True, kw_only=True)
class GraphSpace:
    """Search space of all cells of some nodes and operations."""

    nodes: PositiveInt = 3
    """Nodes of a cell. >= 1."""
    operations: tuple[str, ...]
    """Operations on an edge; with `NONE` among them edges and nodes may be left out."""
    edges: NonNegativeInt = 2
    """Edges of each node; 0: one from each state before it (DARTS, Liu et al. 2019)."""
    combinations: tuple[str, ...] = ("add",)
    """Combinations of the nodes."""
    inputs: PositiveInt = 1
    """Input states of a cell: outputs of the last cells before it, or else the first. >= 1."""
    output: Literal["unread", "all"] = "unread"
    """Nodes whose mean is the output of a cell."""
    cells: tuple[int, ...] = (1,)
    """Possible numbers of equal cells in a row, ascending."""
    reads: tuple[str, ...] = ()
    """Operations of a recurrent cell on each of `operations.READS` (ESS, Li et al. 2020); empty: it
    reads the token and the state before it as they are."""
    window: PositiveInt = 2
    """Tokens and states in the means among `operations.READS`. >= 1."""

    def __post_init__(self) -> None:
        check_types(self)
        rising = all(a < b for a, b in pairwise((-1, *self.cells))) and self.cells[-1:] > (0,)
        in_table = bool(self.combinations) and set(self.combinations) <= set(COMBINATIONS)
        check_ranges(
            self,
            operations=(len(set(self.operations)) == len(self.operations) > 0, "different names"),
            combinations=(in_table, f"some of {', '.join(COMBINATIONS)}"),
            cells=(rising, "numbers, rising, the last > 0"),
        )

    @cached_property
    def all_places(self) -> Mapping[str, tuple[Any, ...]]:
        """Choices at each place, including places with a single choice."""
        places: dict[str, tuple[Any, ...]] = {}
        for number in range(self.nodes):
            states = tuple(range(self.inputs + number))
            each = [states] * self.edges if self.edges else [(state,) for state in states]
            for edge, choices in enumerate(each):
                places[f"nodes[{number}].inputs[{edge}]"] = choices
                places[f"nodes[{number}].operations[{edge}]"] = self.operations
            places[f"nodes[{number}].combination"] = self.combinations
        for place, name in enumerate(READS if self.reads else ()):
            operations = tuple(operation for operation in self.reads if operation != NONE)
            places[f"reads[{place}]"] = self.reads if name in WINDOWS else operations
        return {**places, "cells": self.cells}

    @cached_property
    def places(self) -> Mapping[str, tuple[Any, ...]]:
        """Choices at each place with several."""
        return {place: all_ for place, all_ in self.all_places.items() if len(all_) > 1}

    def weights(self, numbers: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        """Weights over the choices of all places, 1 for a single choice."""
        return {**{place: [1.0] for place in self.all_places}, **numbers}

    def edges_of(self, number: int) -> int:
        """Number of edges of a node; nodes count from 0."""
        return self.edges or self.inputs + number

    def operations_of(self, number: int) -> tuple[str, ...]:
        """The places of the operations of a node, one an edge."""
        return tuple(f"nodes[{number}].operations[{edge}]" for edge in range(self.edges_of(number)))

    def cell(self, choices: Mapping[str, Any]) -> Graph:
        """Cell of some choices, not canonical; the first choice stands for a missing one."""
        choices = {**{place: all_[0] for place, all_ in self.all_places.items()}, **choices}
        nodes = []
        for number in range(self.nodes):
            edges, node = range(self.edges_of(number)), f"nodes[{number}]"
            states, names = (
                tuple(choices[f"{node}.{kind}[{edge}]"] for edge in edges)
                for kind in ("inputs", "operations")
            )
            nodes.append(Node(states, names, choices[f"{node}.combination"]))
        return Graph(tuple(nodes), self.inputs)

    def unrolled(self, choices: Mapping[str, Any]) -> Graph:
        """All cells of some choices as one graph with one input, not in canonical form."""
        # After the nodes of a cell a node passes its output on: the number of node n of cell c is
        # c x (nodes + 1) + n.
        return self.repeated(self.cell(choices), int(choices.get("cells", self.cells[0])))

    def repeated(self, cell: Graph, cells: int) -> Graph:
        """Chain this many equal cells of the space's inputs, as `unrolled` does."""
        outputs = cell.outputs(self.output == "all")
        passed = Node(outputs, (IDENTITY,) * len(outputs), "mean")
        nodes: list[Node] = []
        given = [0] * self.inputs
        edges = [edge for node in (*cell.nodes, passed) for edge in node.edges]
        read = {state for state, name in edges if name != NONE}
        for needed in needed_cells(self.inputs, read, [n == cells - 1 for n in range(cells)]):
            numbers = range(len(nodes) + 1, len(nodes) + 1 + len(cell.nodes))
            states = [*given[len(given) - self.inputs :], *numbers]
            for node in (*cell.nodes, passed):
                names = node.operations if needed else (NONE,) * len(node.inputs)
                nodes.append(Node(tuple(states[s] for s in node.inputs), names, node.combination))
            given.append(len(nodes))
        if nodes and self.output == "unread" and outputs != (self.inputs - 1,):
            nodes.pop()  # what nobody reads is the output
        return Graph(tuple(nodes))

    def graph(self, choices: Mapping[str, Any]) -> Graph:
        """Canonical graph of some choices.

        Args:
            choices: one of each place.

        Returns:
            All its cells as one canonical graph.
        """
        return self.unrolled(choices).canonical()

    def choices(self, cell: Graph) -> dict[str, Any]:
        """Choices that define this cell.

        Args:
            cell: with as many inputs as the space has.

        Returns:
            One choice of each place. What the cell lacks is `NONE`, also where the space has none:
            a canonical cell has fewer nodes than its spellings.

        Raises:
            ValueError: for a cell that is not in the space. Where `edges` is 0 some canonical cells
                are not: they read a state twice that they read through a node before.
        """
        choices: dict[str, Any] = {}
        for number in range(max(self.nodes, len(cell.nodes))):
            node = cell.nodes[number] if number < len(cell.nodes) else Node((), ())
            for edge, (state, name) in enumerate(node.edges):
                place = edge if self.edges else state
                if f"nodes[{number}].operations[{place}]" in choices:
                    raise ValueError(f"nodes[{number}] reads {state} twice; the space forbids it")
                choices[f"nodes[{number}].inputs[{place}]"] = state
                choices[f"nodes[{number}].operations[{place}]"] = name
            for place in range(self.edges_of(number)):
                choices.setdefault(f"nodes[{number}].operations[{place}]", NONE)
            if len(node.inputs) > 1:
                choices[f"nodes[{number}].combination"] = node.combination
        for name, choice in choices.items():
            if choice != NONE and choice not in (options := self.all_places.get(name, ())):
                raise ValueError(f"{name} is {choice!r}; the space has {list(options)}")
        return {**{place: all_[0] for place, all_ in self.all_places.items()}, **choices}

    def reads_of(self, choices: Mapping[str, Any]) -> tuple[str, ...]:
        """Operations of a recurrent cell on each of `READS`; empty if the space has none."""
        reads = [place for place in self.all_places if place.startswith("reads[")]
        return tuple(choices.get(place, self.all_places[place][0]) for place in reads)

    def drawn(self, random: Random) -> dict[str, Any]:
        """Draw choices uniformly and independently."""
        return {place: random.choice(all_) for place, all_ in self.all_places.items()}

    def one_hot(self, choices: Mapping[str, Any]) -> dict[str, list[float]]:
        """One-hot weights of some choices, as a super-net takes them, or of the first ones."""
        return {
            place: [float(choice == choices.get(place, all_[0])) for choice in all_]
            for place, all_ in self.all_places.items()
        }


def needed_cells(inputs: int, read: Collection[int], last: Sequence[bool]) -> list[bool]:
    """Whether each cell is used by a model that ends with one of the `last`; the first of the
    states that a cell reads, `read`, are the outputs of as many cells before it."""
    needed = [*last]
    for cell in reversed(range(len(needed))):
        for state in range(inputs) if needed[cell] else ():
            if state in read and (back := cell + state - inputs) >= 0:
                needed[back] = True
    return needed

"""Genotype: the choices of a search that define a cell."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from objectives.errors import UserError, did_you_mean
from objectives.students.cells.cell_classifier import POOLINGS
from objectives.students.cells.formulas import is_formula, parts_of
from objectives.students.cells.graph import IDENTITY, NONE, Graph, Node
from objectives.students.cells.operations import HEAD_DIM, OPERATIONS, POSITION_WISE, READS


@dataclass(frozen=True)
class Genotype:
    """Architecture of a `CellForSequenceClassification`."""

    width: int
    """D, dimensions of its hidden states: a multiple of `HEAD_DIM`."""
    operations: tuple[str, ...] = ()
    """Operations of a chain, in order: names of `OPERATIONS`, formulas, `IDENTITY` or `NONE`."""
    nodes: tuple[Node, ...] = ()
    """Nodes of any graph, instead of `operations`. A model has one genotype, whose JSON is its
    canonical form: a graph that is a chain becomes one."""
    pooling: tuple[str, ...] = ("mean", "max")
    """Pooling over tokens that the classifier reads: names of `POOLINGS`, in any order."""
    bigrams: int = 0
    """Rows of a table of hashed pairs of neighbours; 0: none."""
    recurrent: bool = False
    """Whether the graph is applied token by token; all operations are then `POSITION_WISE`."""
    reads: tuple[str, ...] = ()
    """Operation of a recurrent cell on each of `READS`; empty: it reads state and token plainly."""
    window: int = 0
    """Tokens and states in the means of `READS`; 0 where there are no reads."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.width % HEAD_DIM:
            raise UserError(f"width is {self.width}; it must be a multiple of {HEAD_DIM}, > 0")
        names = [*self.operations, *(name for node in self.nodes for name in node.operations)]
        check_operations(names)
        if self.recurrent:
            check_position_wise([*names, *self.reads])
        if self.reads and (not self.recurrent or len(self.reads) != len(READS) or self.window < 1):
            raise UserError(
                f"reads are {self.reads!r}; a recurrent cell has none or {len(READS)} "
                f"({', '.join(READS)}), and then a window of 1 or more"
            )
        check_names("pooling", self.pooling, list(POOLINGS))
        if not self.pooling or len(set(self.pooling)) < len(self.pooling):
            raise UserError(
                f"pooling is {self.pooling!r}; name at least one kind, and each only once"
            )
        if self.bigrams < 0:
            raise UserError(f"bigrams is {self.bigrams}; it must be >= 0")
        if self.reads == (IDENTITY, NONE, IDENTITY, NONE):  # as they are
            object.__setattr__(self, "reads", ())
        if not self.reads:
            object.__setattr__(self, "window", 0)
        try:
            graph = Graph(self.nodes) if self.nodes else Graph.chain(self.operations)
        except ValueError as error:
            raise UserError(f"this cell is not possible: {error}") from error
        graph = graph.canonical()
        chain = graph.as_chain()
        object.__setattr__(self, "operations", chain or ())
        object.__setattr__(self, "nodes", graph.nodes if chain is None else ())
        object.__setattr__(self, "pooling", tuple(n for n in POOLINGS if n in self.pooling))

    @cached_property
    def graph(self) -> Graph:
        """The canonical graph."""
        return Graph(self.nodes) if self.nodes else Graph.chain(self.operations).canonical()

    @property
    def blocks(self) -> tuple[str, ...]:
        """Operations of the model's blocks, in order."""
        names = [name for node in self.graph.nodes for name in node.operations]
        return tuple(name for name in (*self.reads, *names) if name not in (IDENTITY, NONE))

    def config(self) -> dict[str, Any]:
        """Fields of a `CellConfig` that this genotype sets."""
        fields = {name: getattr(self, name) for name in ("operations", "pooling", "bigrams")}
        graph = {"nodes": Graph(self.nodes).to_list()}
        return {"hidden_size": self.width, **fields, **graph, **self._recurrence()}

    def _recurrence(self) -> dict[str, Any]:
        """Fields of a recurrent cell; none of others, whose documents stay as they were."""
        reads = {"reads": self.reads, "window": self.window} if self.reads else {}
        return {"recurrent": True, **reads} if self.recurrent else {}

    def to_json(self) -> str:
        """Write one line of JSON."""
        graph = {"nodes": Graph(self.nodes).to_list()} if self.nodes else {}
        fields = {name: getattr(self, name) for name in ("operations", "pooling", "bigrams")}
        return json.dumps({"width": self.width, **fields, **graph, **self._recurrence()})

    @classmethod
    def from_json(cls, text: str) -> "Genotype":
        """Read `to_json`. Raises UserError for anything else."""
        try:
            given = json.loads(text)
            nodes = Graph.from_list(given.get("nodes", ())).nodes
            pooling = tuple(map(str, given.get("pooling", ("mean", "max"))))
            names, bigrams = tuple(map(str, given["operations"])), int(given.get("bigrams", 0))
            recurrent, window = bool(given.get("recurrent", False)), int(given.get("window", 0))
            width, reads = int(given["width"]), tuple(map(str, given.get("reads", ())))
            return cls(width, names, nodes, pooling, bigrams, recurrent, reads, window)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"this is not a genotype: {text[:80]!r}") from error

    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Width of each block, by the name of its operation; 0 if it has another."""
        names = ["formula" if is_formula(name) else name for name in self.blocks]
        return {n: tuple(self.width if n == b else 0 for b in names) for n in dict.fromkeys(names)}


def check_operations(names: Sequence[str]) -> None:
    """Raise UserError for the first name that is no operation, `IDENTITY` or `NONE`."""
    check_names("operation", [n for n in names if not is_formula(n)], [*OPERATIONS, IDENTITY, NONE])
    for name in filter(is_formula, names):
        try:
            parts_of(name)
        except ValueError as error:
            raise UserError(f"operation '{name[:80]}' is not a formula: {error}") from error


def check_names(kind: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise UserError for the first unknown name."""
    for name in names:
        if name not in allowed:
            raise UserError(
                f"there is no {kind} '{name}'{did_you_mean(name, allowed)}; they are "
                f"{', '.join(allowed)}"
            )


def check_position_wise(names: Sequence[str]) -> None:
    """Raise UserError for the first operation that a recurrent cell cannot have."""
    allowed = (*POSITION_WISE, IDENTITY, NONE)
    for name in names:
        if name not in allowed:
            raise UserError(
                f"operation '{name}' reads other tokens, which a recurrent cell cannot; choose "
                f"among {', '.join(allowed)}"
            )

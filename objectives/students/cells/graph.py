"""A cell as a directed acyclic graph: which operation is done on what, and how the results combine.

The states of a cell are its inputs, then what its nodes give, in their order. The states of nodes
that nobody reads are its output: their mean. Pure Python: an exported model carries a copy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = "none"
"""Operation without output: its input is not read."""
IDENTITY = "identity"
"""Operation that returns its input."""
COMBINATIONS = ("add", "mean", "product")
"""Combinations of the results of a node's operations."""


@dataclass(frozen=True)
class Node:
    """Node: an operation on each of some states, and a combination of the results."""

    inputs: tuple[int, ...]
    """Numbers of the states that it reads, all before it."""
    operations: tuple[str, ...]
    """Operations on each input."""
    combination: str = "add"
    """Combination of the results: an entry of `COMBINATIONS`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "operations", tuple(self.operations))

    @property
    def edges(self) -> tuple[tuple[int, str], ...]:
        """Each state that it reads, with the operation on it."""
        return tuple(zip(self.inputs, self.operations, strict=True))


class _Edge(NamedTuple):
    """A state that a node reads, and the operation on it."""

    state: int
    operation: str
    source: tuple[int, int] = (0, 0)
    """Number of the node in the original spelling, and of the edge in it."""


_Edges = dict[int, tuple[str, list[_Edge]]]
"""Combination and edges of each node by its state, in the order of the states."""


@dataclass(frozen=True)
class Graph:
    """Cell: nodes over its inputs."""

    nodes: tuple[Node, ...] = ()
    inputs: int = 1
    """Number of input states of the cell."""

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            states = range(self.inputs + number)
            if not node.inputs or len(node.inputs) != len(node.operations):
                raise ValueError(f"nodes[{number}] needs one operation for each of its inputs")
            if wrong := [state for state in node.inputs if state not in states]:
                raise ValueError(
                    f"nodes[{number}] reads {wrong[0]!r}; it may read 0 to {states[-1]}"
                )
            if node.combination not in COMBINATIONS:
                raise ValueError(
                    f"nodes[{number}].combination is {node.combination!r}; it must be one of "
                    f"{', '.join(COMBINATIONS)}"
                )

    @classmethod
    def chain(cls, operations: Sequence[str]) -> "Graph":
        """Make a chain: each node adds its operation's result to the state that it reads."""
        rows = enumerate(operations)
        return cls(tuple(Node((place, place), (name, IDENTITY)) for place, name in rows))

    def as_chain(self) -> tuple[str, ...] | None:
        """Operations of a canonical graph that is a `chain`; else None."""
        names: list[str] = []
        for place, node in enumerate(self.nodes):
            rest = Counter(node.operations) - Counter([IDENTITY])
            if node.inputs != (place, place) or node.combination != "add" or len(rest) != 1:
                return None
            names.append(*rest)
        return tuple(names) if self.inputs == 1 and Graph.chain(names).canonical() == self else None

    def outputs(self, every: bool = False) -> tuple[int, ...]:
        """States whose mean is the output: nodes that none reads, or all; else the last input."""
        live = self._live()
        read = {edge.state for _, edges in live.values() for edge in edges}
        return tuple(s for s in live if every or s not in read) or (self.inputs - 1,)

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of nodes on the longest path to each state."""
        depths = [0] * self.inputs
        for node in self.nodes:
            depths.append(1 + max(depths[state] for state in node.inputs))
        return tuple(depths)

    def to_list(self) -> list[dict[str, Any]]:
        """Nodes for JSON."""
        return [
            {"inputs": [*n.inputs], "operations": [*n.operations], "combination": n.combination}
            for n in self.nodes
        ]

    @classmethod
    def from_list(cls, nodes: Sequence[Mapping[str, Any]], inputs: int = 1) -> "Graph":
        """Read `to_list`. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(tuple(Node(**node) for node in nodes), inputs)

    def canonical(self) -> "Graph":
        """Canonical form of all graphs that define the same model."""
        # Without what gives nothing and nodes that only pass a state on, inputs in order, and of
        # all orders of the nodes the one that comes first.
        return self.with_sources()[0]

    def with_sources(self) -> tuple["Graph", tuple[tuple[int, int], ...]]:
        """Canonical graph, and of each of its edges the number of its node here, and its place."""
        live = self._kept()
        order = _first_order(live, self.inputs)
        placed = {state: state for state in range(self.inputs)}
        placed |= {state: self.inputs + number for number, state in enumerate(order)}
        nodes: list[Node] = []
        sources: list[tuple[int, int]] = []
        for state in order:
            combination, edges = live[state]
            edges = sorted(edge._replace(state=placed[edge.state]) for edge in edges)
            states, names, of_edges = zip(*edges, strict=True)
            nodes.append(Node(states, names, combination))
            sources.extend(of_edges)
        return Graph(tuple(nodes), self.inputs), tuple(sources)

    def _live(self) -> _Edges:
        """Nodes with an output, without edges that have none."""
        live: _Edges = {}
        for number, node in enumerate(self.nodes):
            edges = [
                _Edge(state, name, (number, place))
                for place, (state, name) in enumerate(node.edges)
                if name != NONE and (state < self.inputs or state in live)
            ]
            if edges:
                combination = node.combination if len(edges) > 1 else "add"
                live[self.inputs + number] = combination, edges
        return live

    def _kept(self) -> _Edges:
        """Live nodes, without those that only pass a state on."""
        live = self._live()
        while (idle := next((s for s in live if self._passes_on(s, live)), None)) is not None:
            _, edges = live.pop(idle)
            for state, (combination, reads) in live.items():
                passed = edges[0].state
                renamed = [e._replace(state=passed) if e.state == idle else e for e in reads]
                live[state] = combination, renamed
        return live

    def _passes_on(self, state: int, live: _Edges) -> bool:
        """Whether its readers, or the output, would be the same without this node."""
        combination, edges = live[state]
        if any(edge.operation != IDENTITY for edge in edges):
            return False
        readers = Counter(e.state for _, reads in live.values() for e in reads)
        if readers[state]:
            return len(edges) == 1
        if len(live) == 1:  # the last input is then the output by itself
            return len(edges) == 1 and edges[0].state == self.inputs - 1
        alone = all(e.state >= self.inputs and readers[e.state] == 1 for e in edges)
        outputs = sum(not readers[other] for other in live)
        return alone and (len(edges) == 1 or (combination == "mean" and outputs == 1))


def _first_order(nodes: _Edges, inputs: int) -> list[int]:
    """Topological order whose sorted edges and combinations come first; ties by colour."""
    order: list[int] = []
    while len(order) < len(nodes):
        placed = {state: state for state in range(inputs)}
        placed |= {state: inputs + number for number, state in enumerate(order)}
        colours = _colours(nodes, placed)
        ready = [
            (sorted((placed[e.state], e.operation) for e in edges), combined, colours[state], state)
            for state, (combined, edges) in nodes.items()
            if state not in placed and all(e.state in placed for e in edges)
        ]
        order.append(min(ready)[-1])
    return order


def _colours(nodes: _Edges, placed: Mapping[int, int]) -> dict[int, int]:
    """Colour refinement (Weisfeiler & Leman 1968): numbers of states, whatever their order."""
    # Two states of one number can change places in every cell that is small enough to be one.
    colours = {**dict.fromkeys(nodes, len(nodes) + len(placed)), **placed}
    while True:
        readers: dict[int, list[tuple[str, int]]] = {state: [] for state in colours}
        for state, (_, edges) in nodes.items():
            for edge in edges:
                readers[edge.state].append((edge.operation, colours[state]))
        rows = {}
        for state, colour in colours.items():
            combination, edges = nodes.get(state, ("", []))
            read = sorted((edge.operation, colours[edge.state]) for edge in edges)
            rows[state] = (colour, combination, tuple(read), tuple(sorted(readers[state])))
        ranks = {row: rank for rank, row in enumerate(sorted(set(rows.values())))}
        if len(ranks) == len(set(colours.values())):
            return colours
        colours = {state: ranks[row] for state, row in rows.items()}

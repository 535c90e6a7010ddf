"""I-DARTS (Jiang et al. 2019): one softmax over all that may enter a node.

All pairs of a predecessor and an operation compete for a node, where in DARTS only the operations
of one edge do. The n pairs of a node that weigh most stay: two of them may share a predecessor."""

from dataclasses import dataclass, replace

from objectives.errors import check_ranges
from objectives.methods.cells.base.soft_search import EdgeWeights, SoftSearch, strongest_pairs
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import NONE, Graph, Node
from objectives.students.cells.graph_space import GraphSpace


@dataclass(frozen=True, kw_only=True)
class IDarts(SoftSearch):
    """Search by gradient with a softmax for each node, of first or second order."""

    pairs: int = 1
    """n: pairs of a predecessor and an operation that each node keeps. >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len({*self.names} - {NONE})
        check_ranges(self, pairs=(1 <= self.pairs <= most, f"1 to {most}, the operations"))

    @property
    def space(self) -> GraphSpace:
        """The space of a cell with an edge from each state before a node."""
        return GraphSpace(nodes=self.nodes, operations=self.names, edges=0, output="all")

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The edges of each node."""
        return tuple(map(self.space.operations_of, range(self.nodes)))

    @property
    def kept(self) -> float:
        """The operations that a node keeps, where all its weights add up to one."""
        return float(self.pairs)

    def derived(self, weights: EdgeWeights) -> Genotype:
        """The pairs of each node that weigh most."""
        space, nodes = self.space, []
        for node in range(self.nodes):
            edges = space.operations_of(node)
            strongest = strongest_pairs(space.all_places, weights, edges, self.pairs, never=(NONE,))
            states = tuple(edges.index(place) for place, _ in strongest)
            nodes.append(Node(states, tuple(str(name) for _, name in strongest)))
        return replace(self.base, nodes=space.repeated(Graph(tuple(nodes)), 1).nodes)

"""DARTS (Liu et al. 2019): every edge of a cell is a weighted sum of all operations.

alpha holds the weights of each edge and learns with the super-net's weights, each on rows of its
own. Of each node the edges stay whose best operation weighs most, each with that operation; then
the cell is trained again."""

from dataclasses import dataclass, replace

from objectives.errors import PositiveInt, check_ranges
from objectives.methods.cells.base.soft_search import EdgeWeights, SoftSearch, heaviest
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import NONE
from objectives.students.cells.graph_space import GraphSpace


@dataclass(frozen=True, kw_only=True)
class Darts(SoftSearch):
    """Search by gradient with a softmax for each edge, of first or second order."""

    cells: int = 1
    """Equal cells in a row; of two or more each reads the last two. >= 1; 1 if recurrent."""
    edges: PositiveInt | None = None
    """Edges that each node keeps; None: 2 as in the paper, 1 in a recurrent cell. >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.cells == 1 or not self.recurrent
        check_ranges(self, cells=(fits, "1 where they are recurrent"))

    @property
    def space(self) -> GraphSpace:
        """The space with an edge from each state before a node."""
        read, cells = min(2, self.cells), (self.cells,)
        return GraphSpace(
            nodes=self.nodes, operations=self.names, edges=0, inputs=read, output="all", cells=cells
        )

    @property
    def most(self) -> int:
        """Edges of a node that stay, if it has as many."""
        return self.edges or (1 if self.recurrent else 2)

    @property
    def kept(self) -> float:
        """The edges that stay, of all."""
        entering = list(map(self.space.edges_of, range(self.nodes)))
        return sum(min(self.most, edges) for edges in entering) / sum(entering)

    def derived(self, weights: EdgeWeights) -> Genotype:
        """The edges of each node whose best operation weighs most, without `NONE`."""
        choices = heaviest(self.space, weights, self.most, never=(NONE,))
        return replace(self.base, nodes=self.space.graph(choices).nodes)

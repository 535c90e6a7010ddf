"""ESS (Li et al. 2020), as far as it is known: a recurrent cell, and what it reads of the past.

A recurrent cell of DARTS makes a new state of the last state and the token. Here it makes it of"""

#     a(last state) b(mean of the last m tokens)   and   c(token) d(mean of the last m states),
#
# products in which a to d are operations that are searched as well. Alpha of the cell and alpha of
# these four learn in turn. With nothing at b and d and the identity at a and c it is DARTS' cell.
#
# Products of states may make rounding errors grow from token to token, so that a long text has
# other answers in ONNX than in torch. An export checks that, and refuses such a model.

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from objectives.errors import PositiveInt
from objectives.methods.cells.base.soft_search import EdgeWeights, SoftSearch, heaviest
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace


@dataclass(frozen=True, kw_only=True)
class Ess(SoftSearch):
    """Search by gradient for a recurrent cell and for what it reads of the tokens before."""

    recurrent: ClassVar[bool] = True  # type: ignore[misc]

    window: PositiveInt = 3
    """m: tokens and states before the present ones that are read. >= 1."""

    @property
    def space(self) -> GraphSpace:
        """The space with an edge from each state before a node, and four reads."""
        names, window = self.names, self.window
        reads = tuple(dict.fromkeys((IDENTITY, NONE, *names)))
        return GraphSpace(
            nodes=self.nodes, operations=names, edges=0, output="all", reads=reads, window=window
        )

    @property
    def kept(self) -> float:
        """The share of edges that stay: a node keeps one."""
        return self.nodes / sum(map(self.space.edges_of, range(self.nodes)))

    def _steps_on(self, step: int) -> Collection[str]:
        """The reads at even steps, the cell at odd ones."""
        return [p for p in self.space.places if p.startswith("reads") == (step % 2 == 0)]

    def derived(self, weights: EdgeWeights) -> Genotype:
        """The best edge of each node, without `NONE`, and the best operation of each read."""
        space = self.space
        choices = heaviest(space, weights, 1, never=(NONE,))
        for place, names in space.places.items():
            if place.startswith("reads"):
                best = max(range(len(names)), key=weights[place].__getitem__)
                choices[place] = names[best]
        nodes, reads = space.graph(choices).nodes, space.reads_of(choices)
        return replace(self.base, nodes=nodes, reads=reads, window=self.window)

"""How far apart two cells are (Auto-Keras, Jin et al. 2019, section 3.1): its operations as layers,
its edges as skip connections.

The operations are aligned in their order, the edges matched at the lowest cost. Both distances are
those of the paper; what differs is what a layer has: a kind, and a number, such as the kernel.
"""

from functools import lru_cache
from string import digits

import numpy as np
from scipy.optimize import linear_sum_assignment

from objectives.students.cells.graph import Graph


def edit_distance(one: Graph, other: Graph, edge_weight: float = 1.0) -> float:
    """d = d_layers + lambda d_edges of two cells, lambda > 0 being the weight; symmetric, and 0
    where they are one model alone."""
    layers, edges = zip(*map(_described, (one, other)), strict=True)
    return _aligned(*layers) + edge_weight * _matched(*edges)


@lru_cache(maxsize=10_000)
def _described(graph: Graph) -> tuple[list[str], list[tuple[int, int, str]]]:
    """The operations in their order; of each edge its start, its reach and its combination."""
    names: list[str] = []
    edges: list[tuple[int, int, str]] = []
    cell = graph.canonical()
    for number, node in enumerate(cell.nodes, start=cell.inputs):
        names += node.operations
        edges += [(state, number - state, node.combination) for state in node.inputs]
    return names, edges


def _of_layers(one: str, other: str) -> float:
    """The cost of one operation in place of another of its kind: by how much kernels differ."""
    kind = one.rstrip(digits)
    if one == other or kind != other.rstrip(digits):
        return float(one != other)
    a, b = (int(name[len(kind) :] or 0) for name in (one, other))
    return abs(a - b) / max(a, b)


def _aligned(one: list[str], other: list[str]) -> float:
    """The lowest cost of an alignment in which each operation that is alone costs 1."""
    costs = np.zeros((len(one) + 1, len(other) + 1))
    costs[:, 0], costs[0] = range(len(one) + 1), range(len(other) + 1)
    for i, a in enumerate(one, start=1):
        for j, b in enumerate(other, start=1):
            alone = 1 + min(costs[i - 1, j], costs[i, j - 1])
            costs[i, j] = min(alone, costs[i - 1, j - 1] + _of_layers(a, b))
    return float(costs[-1, -1])


def _matched(one: list[tuple[int, int, str]], other: list[tuple[int, int, str]]) -> float:
    """The lowest cost of a matching of edges, each of which that has no other costs 1."""
    costs = np.array(
        [
            [
                1.0 if kind != k else (abs(u - v) + abs(d - e)) / (max(u, v) + max(d, e))
                for v, e, k in other
            ]
            for u, d, kind in one
        ]
    ).reshape(len(one), len(other))
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum()) + abs(len(one) - len(other))

"""From weights over the operations of edges to the inputs that each node keeps."""

from collections.abc import Collection, Mapping, Sequence

from objectives.strategies.places.strategy import Choice, Places

EdgeWeights = Mapping[str, Sequence[float]]
"""Of each edge, a place, in the order of its choices."""
Kept = list[tuple[str, Choice]]
"""Edges that enter a node, each with its operation; the strongest first."""


def strongest_edges(
    places: Places, weights: EdgeWeights, edges: Sequence[str], n: int, never: Collection[Choice]
) -> Kept:
    """The `n` edges into a node whose best operation weighs most, each with that operation.

    DARTS (Liu et al. 2019) keeps two of cells over sequences and one of recurrent cells, and never
    "none"; AdaBERT keeps two, and may keep "zero". Of equals the first of `edges` and of the
    choices comes first.
    """
    best = [max(_pairs(places, weights, [edge], never), key=lambda pair: pair[0]) for edge in edges]
    return [kept for _, kept in sorted(best, key=lambda pair: -pair[0])[:n]]


def strongest_pairs(
    places: Places, weights: EdgeWeights, edges: Sequence[str], n: int, never: Collection[Choice]
) -> Kept:
    """The `n` heaviest pairs of an edge into a node and an operation: I-DARTS (Jiang et al. 2019).

    One edge may keep several operations, another none. Ties as in `strongest_edges`.
    """
    pairs = _pairs(places, weights, edges, never)
    return [kept for _, kept in sorted(pairs, key=lambda pair: -pair[0])[:n]]


def _pairs(
    places: Places, weights: EdgeWeights, edges: Sequence[str], never: Collection[Choice]
) -> list[tuple[float, tuple[str, Choice]]]:
    return [
        (float(weight), (edge, choice))
        for edge in edges
        for choice, weight in zip(places[edge], weights[edge], strict=True)
        if choice not in never
    ]

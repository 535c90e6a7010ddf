"""What a node keeps, against every possible choice."""

from itertools import combinations, product

import numpy as np
import pytest

from objectives.methods.cells.base.soft_search import strongest_edges, strongest_pairs

OPERATIONS = ("none", "conv3", "conv5", "zero")
EDGES = ("0->3", "1->3", "2->3")
PLACES = dict.fromkeys(EDGES, OPERATIONS)


def drawn(seed: int) -> dict[str, list[float]]:
    generator = np.random.default_rng(seed)
    return {edge: generator.random(len(OPERATIONS)).tolist() for edge in EDGES}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_edges_are_the_heaviest_with_one_operation_each(seed: int, n: int) -> None:
    weights = drawn(seed)
    kept = strongest_edges(PLACES, weights, EDGES, n, never=("none",))
    assert len({edge for edge, _ in kept}) == n
    assert all(operation != "none" for _, operation in kept)

    def weight(pairs: list[tuple[str, object]]) -> float:
        return sum(weights[edge][OPERATIONS.index(str(op))] for edge, op in pairs)

    best = max(
        weight(list(zip(edges, operations, strict=True)))
        for edges in combinations(EDGES, n)
        for operations in product(OPERATIONS[1:], repeat=n)
    )
    assert weight(list(kept)) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 3, 5])
def test_pairs_are_the_heaviest_whatever_their_edges(seed: int, n: int) -> None:
    weights = drawn(seed)
    kept = strongest_pairs(PLACES, weights, EDGES, n, never=("none",))
    lightest = min(weights[edge][OPERATIONS.index(str(operation))] for edge, operation in kept)
    others = set(product(EDGES, OPERATIONS[1:])) - set(kept)
    assert len(set(kept)) == n
    assert all(weights[edge][OPERATIONS.index(op)] <= lightest for edge, op in others)


def test_by_hand() -> None:
    weights = {
        "0->3": [0.9, 0.05, 0.04, 0.01],  # "none" weighs most, and counts for nothing
        "1->3": [0.1, 0.4, 0.45, 0.05],
        "2->3": [0.2, 0.1, 0.1, 0.6],
    }
    edges = strongest_edges(PLACES, weights, EDGES, 2, never=("none",))
    assert edges == [("2->3", "zero"), ("1->3", "conv5")]
    pairs = strongest_pairs(PLACES, weights, EDGES, 3, never=("none",))
    assert pairs == [("2->3", "zero"), ("1->3", "conv5"), ("1->3", "conv3")]
    assert strongest_edges(PLACES, weights, EDGES, 1, never=()) == [("0->3", "none")]

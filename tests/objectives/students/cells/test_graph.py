"""A graph is one model however it is spelt; a space names each choice and finds the graph again."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.methods.cells.auto_keras import edit_distance
from objectives.students.cells.graph import COMBINATIONS, IDENTITY, NONE, Graph, Node
from objectives.students.cells.graph_space import GraphSpace

OPERATIONS = ("conv3", "conv7", "gated", IDENTITY, NONE)
SPACE = GraphSpace(nodes=3, operations=OPERATIONS, combinations=COMBINATIONS)
EVERY_STATE = GraphSpace(nodes=3, operations=OPERATIONS, edges=0, inputs=2, output="all")


@st.composite
def graphs(draw: st.DrawFn, nodes: int = 5, inputs: int = 1) -> Graph:
    """Some nodes with one to three inputs each."""
    found = []
    for number in range(draw(st.integers(0, nodes))):
        edges = draw(st.integers(1, 3))
        states = st.integers(0, inputs + number - 1)
        names = st.sampled_from(OPERATIONS)
        found.append(
            Node(
                tuple(draw(states) for _ in range(edges)),
                tuple(draw(names) for _ in range(edges)),
                draw(st.sampled_from(COMBINATIONS)),
            )
        )
    return Graph(tuple(found), inputs)


def value(graph: Graph) -> float:
    """What the graph makes of 2, where each edge multiplies by a number of its own, that of its
    operation; NONE edges and nodes without others are not there."""
    factors = {"conv3": 1.25, "conv7": -0.75, "gated": 1.5, IDENTITY: 1.0}
    states: list[float | None] = [2.0 + number for number in range(graph.inputs)]
    read = set()
    for node in graph.nodes:
        parts = [
            factors[name] * given
            for state, name in node.edges
            if name != NONE and (given := states[state]) is not None
        ]
        if not parts:
            states.append(None)
            continue
        read |= {s for s, n in node.edges if n != NONE}
        whole = {"add": sum(parts), "mean": sum(parts) / len(parts), "product": 1.0}
        for part in parts:
            whole["product"] *= part
        states.append(whole[node.combination])
    given = [
        state
        for number, state in enumerate(states)
        if number >= graph.inputs and number not in read and state is not None
    ]
    last = states[graph.inputs - 1]
    assert last is not None
    return sum(given) / len(given) if given else last


@given(graphs(inputs=2))
def test_the_canonical_graph_gives_what_the_graph_gives(graph: Graph) -> None:
    canonical = graph.canonical()
    assert value(canonical) == pytest.approx(value(graph))
    assert canonical.canonical() == canonical
    assert NONE not in {name for node in canonical.nodes for name in node.operations}


@given(graphs(), st.randoms(use_true_random=False))
def test_two_spellings_have_one_canonical_graph(graph: Graph, shuffled: random.Random) -> None:
    assert respelt(graph, shuffled).canonical() == graph.canonical()


def respelt(graph: Graph, shuffled: random.Random) -> Graph:
    """Another order of the nodes and of their inputs, with edges that give nothing among them."""
    left, order = list(range(len(graph.nodes))), list[int]()
    while left:
        ready = [n for n in left if all(s == 0 or s - 1 in order for s in graph.nodes[n].inputs)]
        order.append(shuffled.choice(ready))
        left.remove(order[-1])
    nodes = []
    for number in order:
        node = graph.nodes[number]
        states = [0 if s == 0 else 1 + order.index(s - 1) for s in node.inputs]
        edges = [*zip(states, node.operations, strict=True)]
        edges.append((shuffled.randrange(len(nodes) + 1), NONE))
        shuffled.shuffle(edges)
        nodes.append(Node(*zip(*edges, strict=True), node.combination))
    return Graph(tuple(nodes))


@given(graphs(inputs=2))
def test_each_canonical_edge_knows_where_it_was(graph: Graph) -> None:
    canonical, sources = graph.with_sources()
    names = [name for node in canonical.nodes for name in node.operations]
    assert names == [graph.nodes[number].operations[place] for number, place in sources]
    assert len(set(sources)) == len(sources)


@given(graphs(inputs=2))
def test_a_graph_survives_json(graph: Graph) -> None:
    assert Graph.from_list(json.loads(json.dumps(graph.to_list())), graph.inputs) == graph


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (Node((1,), ("conv3",)), r"nodes\[0\] reads 1; it may read 0 to 0"),
        (Node((0,), ()), "one operation for each"),
        (Node((0,), ("conv3",), "minus"), "one of add, mean, product"),
    ],
)
def test_a_node_that_cannot_be_is_refused(node: Node, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Graph((node,))


@given(st.lists(st.sampled_from(OPERATIONS), max_size=4))
def test_a_chain_knows_its_operations(operations: list[str]) -> None:
    blocks = tuple(name for name in operations if name != NONE)
    assert Graph.chain(operations).canonical().as_chain() == blocks


def test_what_is_no_chain_is_not_taken_for_one() -> None:
    bare = Graph((Node((0,), ("conv3",)),))
    skip = Graph((*Graph.chain(["conv3"]).nodes, Node((0, 1), ("conv3", IDENTITY))))
    assert bare.canonical().as_chain() is None
    assert skip.canonical().as_chain() is None


def test_depths_are_longest_ways() -> None:
    graph = Graph(
        (Node((0,), ("conv3",)), Node((0, 1), ("gated", "conv3")), Node((0,), ("gated",)))
    )
    assert graph.depths == (0, 1, 2, 1)
    assert graph.outputs() == (2, 3)
    assert graph.outputs(every=True) == (1, 2, 3)


def test_many_nodes_that_are_alike_are_told_apart_by_their_readers_quickly() -> None:
    alike, readers = [Node((0,), ("a",))] * 12, [*"abcdefghijkl"]
    spellings = []
    for seed in range(3):
        random.Random(seed).shuffle(readers)
        last = [Node((1 + place,), (name,)) for place, name in enumerate(readers)]
        spellings.append(Graph((*alike, *last)).canonical())
    assert spellings[0] == spellings[1] == spellings[2]
    crossed = [Node((1 + place, 1 + (place + 1) % 4), ("b", "b")) for place in range(4)]
    ring = Graph((*alike[:4], *crossed))
    apart = Graph((*alike[:4], *[replace(crossed[p], inputs=(1 + p, 1 + p ^ 1)) for p in range(4)]))
    assert ring.canonical() != apart.canonical()
    assert all(respelt(ring, random.Random(s)).canonical() == ring.canonical() for s in range(9))


@given(seed=st.integers(0, 2**32))
def test_choices_make_a_cell_whose_choices_make_it_again(seed: int) -> None:
    choices = SPACE.drawn(random.Random(seed))
    assert set(choices) == set(SPACE.all_places)
    cell = SPACE.cell(choices).canonical()
    assert SPACE.graph(choices) == cell
    assert SPACE.graph(SPACE.choices(cell)) == cell


@given(seed=st.integers(0, 2**32))
def test_choices_of_edges_from_all_states_are_found_again(seed: int) -> None:
    choices = EVERY_STATE.drawn(random.Random(seed))
    again = EVERY_STATE.choices(EVERY_STATE.cell(choices))
    assert {place: again[place] for place in EVERY_STATE.places} == {
        place: choices[place] for place in EVERY_STATE.places
    }


def test_a_place_of_one_choice_is_none() -> None:
    assert "nodes[0].inputs[0]" not in SPACE.places
    assert SPACE.places["nodes[2].inputs[1]"] == (0, 1, 2)
    assert SPACE.places["nodes[2].operations[0]"] == OPERATIONS
    assert SPACE.places["nodes[0].combination"] == COMBINATIONS
    assert not [place for place in EVERY_STATE.places if "inputs" in place]
    assert "nodes[2].operations[3]" in EVERY_STATE.places


def test_a_cell_outside_of_the_space_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nodes\[0\].operations\[0\] is 'attention'"):
        SPACE.choices(Graph.chain(["attention"]))
    with pytest.raises(ValueError, match=r"nodes\[3\]"):
        SPACE.choices(Graph.chain(["conv3"] * 4))
    with pytest.raises(ValueError, match="reads 0 twice"):
        EVERY_STATE.choices(Graph((Node((0, 0), ("conv3", "gated")),), inputs=2))


def test_every_graph_of_a_small_space_has_its_one_canonical_graph() -> None:
    """Two nodes, each of which may read all before it: 3 + 27 spellings of each choice."""
    space = GraphSpace(nodes=2, operations=("conv3", NONE), edges=0)
    found: dict[Graph, list[Mapping[str, str]]] = {}
    for names in product(space.operations, repeat=3):
        choices = dict(zip(space.places, names, strict=True))
        found.setdefault(space.graph(choices), []).append(choices)
    # Nothing; one node; two beside each other; one behind the other; and that with a skip.
    assert sorted(map(len, found.values())) == [1, 1, 1, 2, 3]


def test_cells_follow_one_another() -> None:
    space = GraphSpace(nodes=1, operations=("conv3",), edges=1, cells=(0, 1, 3), inputs=2)
    read_last = {"nodes[0].inputs[0]": 1}
    assert space.graph({**read_last, "cells": 0}) == Graph()
    assert space.graph({**read_last, "cells": 3}).depths == (0, 1, 2, 3)
    skipping = space.graph({"nodes[0].inputs[0]": 0, "cells": 3})
    assert skipping.depths == (0, 1, 2), "the third cell reads the first"


def test_the_output_may_be_the_mean_of_every_node() -> None:
    chain = {"nodes[1].inputs[0]": 1, "nodes[0].inputs[0]": 0}
    space = GraphSpace(nodes=2, operations=("conv3",), edges=1, output="all")
    *_, mean = space.graph(chain).nodes
    assert mean == Node((1, 2), (IDENTITY, IDENTITY), "mean")


@given(graphs(), graphs())
def test_a_distance_is_symmetric_and_zero_for_one_model_alone(one: Graph, other: Graph) -> None:
    distance = edit_distance(one, other)
    assert distance == pytest.approx(edit_distance(other, one))
    assert (distance == 0) == (one.canonical() == other.canonical())


def test_a_distance_is_what_the_paper_says() -> None:
    base = Graph.chain(["conv3"])
    assert edit_distance(base, Graph.chain(["conv7"])) == pytest.approx(4 / 7)
    assert edit_distance(base, Graph.chain(["gated"])) == 1
    # One layer and its skip more; both edges go from state 1 to state 2.
    assert edit_distance(base, Graph.chain(["conv3", "gated"])) == 2 + 2
    apart = Graph((*base.nodes, Node((0, 1), ("gated", IDENTITY))))
    assert edit_distance(Graph.chain(["conv3", "gated"]), apart) == pytest.approx((1 + 1) / (1 + 2))

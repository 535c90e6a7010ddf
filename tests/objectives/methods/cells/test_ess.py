"""ESS: a recurrent cell whose readers of the past are searched, too."""

from dataclasses import replace
from statistics import fmean

import pytest

from maskfront import Ess, Problem, SearchResult
from objectives.measures.evaluate import predict
from objectives.methods.cells.base.choosing import ChosenCell
from objectives.progress import SilentProgress
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE, Node
from tests.objectives.conformance import SearchMethodConformance
from tests.objectives.sequences import delayed, labelled_by

QUICK = Ess(
    **{"width": 16, "nodes": 1, "operations": ("tanh", NONE), "window": 2},
    **{"search_epochs": 0.2, "epochs": 0.2, "batch_size": 16},
)


@pytest.mark.slow
class TestEss(SearchMethodConformance):
    quick = QUICK


def test_cell_and_reads_learn_in_turn() -> None:
    cell, reads = QUICK._steps_on(1), QUICK._steps_on(2)
    assert set(cell) == {"nodes[0].operations[0]"}
    assert set(reads) == {f"reads[{place}]" for place in range(4)}
    assert {*cell, *reads} == set(QUICK.space.places)


def test_the_best_operation_of_each_read_stays() -> None:
    places = QUICK.space.places
    weights: dict[str, list[float]] = {"nodes[0].operations[0]": [0.1, 0.9]}
    best = {"reads[0]": "tanh", "reads[1]": NONE, "reads[2]": IDENTITY, "reads[3]": "tanh"}
    weights |= {
        place: [float(own == name) for own in places[place]] for place, name in best.items()
    }
    found = QUICK.derived(QUICK.space.weights(weights))
    assert found.recurrent
    assert found.reads == tuple(best.values())
    assert found.window == 2
    assert found.blocks == ("tanh", "tanh", "tanh")


def test_each_node_keeps_one_edge_where_there_is_one_operation_too() -> None:
    for operations in (("tanh",), ("tanh", NONE)):
        method = replace(QUICK, operations=operations, nodes=3)
        weights = {place: [1.0] * len(ways) for place, ways in method.space.all_places.items()}
        found = method.derived(method.space.weights(weights))
        assert [len(node.edges) for node in found.nodes] == [1, 1, 1]


def test_nothing_stands_alone_at_a_window_only() -> None:
    places = QUICK.space.places
    assert [NONE in places[f"reads[{place}]"] for place in range(4)] == [False, True, False, True]


@pytest.mark.slow
def test_a_product_with_states_before_learns_a_delay_that_the_plain_cell_does_not(
    problem: Problem,
) -> None:
    """The token three places before the last, in equally many steps. A window of one does as well.
    That a search of seconds ends on this read is not so."""
    method = replace(QUICK, epochs=5, learning_rate=1e-2)
    plain = Genotype(16, nodes=(Node((0,), ("tanh",)),), recurrent=True)
    reads = (IDENTITY, NONE, IDENTITY, "linear")
    right: dict[Genotype, list[float]] = {plain: [], replace(plain, reads=reads, window=3): []}
    for seed in range(2):
        task = labelled_by(problem, *delayed(500, 10, 3, seed), train=400)
        for cell, found in right.items():
            outcome = method._learnt(0, ChosenCell(cell, []), task, 0, SilentProgress())
            assert isinstance(outcome, SearchResult)
            said = predict(outcome.model, task.alpha, "cpu").argmax(-1).numpy()
            found.append(float((said == task.alpha.labels).mean()))
    without, reading = map(fmean, right.values())
    assert without < 0.8 < 0.9 < reading

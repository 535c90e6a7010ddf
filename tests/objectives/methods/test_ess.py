"""ESS: a recurrent cell whose readers of the past are searched, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maskfront import Ess, UserError
from objectives.search_method import SearchMethod
from objectives.students.cells.graph import IDENTITY, NONE
from tests.objectives.conformance import SearchMethodConformance

QUICK = Ess(
    **{"width": 16, "nodes": 1, "operations": ("tanh", NONE), "window": 2},
    **{"search_epochs": 0.2, "epochs": 0.2, "batch_size": 16},
)


@pytest.mark.slow
class TestEss(SearchMethodConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> SearchMethod:
        return QUICK


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
    assert found.reads == tuple(best.values())
    assert found.window == 2
    assert found.blocks == ("tanh", "tanh", "tanh")


def test_nothing_stands_alone_at_a_window_only() -> None:
    places = QUICK.space.places
    assert [NONE in places[f"reads[{place}]"] for place in range(4)] == [False, True, False, True]


def test_it_is_recurrent() -> None:
    assert QUICK.base.recurrent
    with pytest.raises(UserError, match="'conv3' reads other tokens"):
        replace(QUICK, operations=("tanh", "conv3"))

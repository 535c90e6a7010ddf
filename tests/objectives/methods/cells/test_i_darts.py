"""I-DARTS: all that may enter a node competes."""

from dataclasses import replace

import pytest

from maskfront import IDarts
from objectives.strategies.soft_choices import SoftChoices, SoftSettings
from objectives.students.cells.graph import NONE
from tests.objectives.conformance import SearchMethodConformance

QUICK = IDarts(
    width=16, nodes=2, operations=("conv3", "max3", NONE), search_epochs=1, epochs=1, batch_size=16
)


class TestIDarts(SearchMethodConformance):
    quick = replace(QUICK, nodes=1, search_epochs=0.2, epochs=0.2)


def test_all_that_enters_a_node_adds_up_to_one() -> None:
    method = replace(QUICK, nodes=3)
    soft = SoftChoices(method.space.places, 0, SoftSettings(together=method.together))
    weights = soft.weights()
    assert sum(map(len, method.together)) == len(weights) == 1 + 2 + 3
    for places in method.together:
        assert sum(float(weights[place].detach().sum()) for place in places) == pytest.approx(1)


def test_two_operations_on_one_state_may_stay() -> None:
    weights = {
        "nodes[0].operations[0]": [0.2, 0.3, 0.5],
        "nodes[1].operations[0]": [0.1, 0.1, 0.4],
        "nodes[1].operations[1]": [0.2, 0.15, 0.05],
    }
    cell = replace(QUICK, pairs=2).derived(weights).graph
    assert cell.nodes[0].edges == ((0, "conv3"), (0, "max3"))
    assert cell.nodes[1].edges == ((1, "conv3"), (1, "max3"))
    one = QUICK.derived(weights).graph
    assert [node.edges for node in one.nodes[:2]] == [((0, "max3"),), ((1, "conv3"),)]

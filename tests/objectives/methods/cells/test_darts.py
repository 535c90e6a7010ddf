"""DARTS: which operation an edge keeps, and what draws alpha to it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from maskfront import Darts
from objectives.measures.cost import Flops
from objectives.methods.cells.base.choosing import hinge
from objectives.problem import Problem
from objectives.students.bert.cutting import shape_of
from objectives.students.cells.graph import IDENTITY, NONE
from tests.objectives.conformance import SearchMethodConformance

QUICK = Darts(
    width=16, nodes=2, operations=("conv3", "max3", NONE), search_epochs=1, epochs=1, batch_size=16
)


class TestDarts(SearchMethodConformance):
    quick = replace(QUICK, nodes=1, search_epochs=0.2, epochs=0.2)


def test_a_node_keeps_its_best_edges_and_never_nothing() -> None:
    method = replace(QUICK, nodes=3, edges=2)
    weights = {place: [0.1, 0.1, 0.8] for place in method.space.places}
    weights |= {"nodes[2].operations[0]": [0.3, 0.0, 0.7], "nodes[2].operations[2]": [0.0, 0.4, 0]}
    cell = method.derived(weights).graph
    for node in cell.nodes[:-1]:
        assert NONE not in node.operations
    assert cell.nodes[2].edges == ((0, "conv3"), (2, "max3"))
    assert {*cell.nodes[3].operations} == {IDENTITY}, "the output is the mean of all nodes"
    assert cell.nodes[3].inputs == (1, 2, 3)


def test_cells_that_follow_each_other_read_the_last_two() -> None:
    method = replace(QUICK, cells=3, nodes=1, operations=("conv3", NONE))
    cell = method.derived({place: [1.0, 0.0] for place in method.space.places}).graph
    assert [name for node in cell.nodes for name in node.operations].count("conv3") == 6


def test_the_hinge_draws_to_the_band_from_both_sides(problem: Problem) -> None:
    whole = Flops(shape_of(problem.teacher.config), problem.seq_len).full
    for share, wanted in ((1.0, 1.0), (0.25, -1.0), (0.46, 0.0), (0.54, 0.0)):
        flops = torch.tensor(share * whole, requires_grad=True)
        loss = 2.0 * hinge(flops, 0.5, 0.1, problem)
        loss.backward()
        assert flops.grad is not None
        assert np.sign(flops.grad.item()) == wanted
        assert loss.item() == pytest.approx(abs(wanted) * 2.0 * np.log(2), abs=1e-6)

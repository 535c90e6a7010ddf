"""Students of operations: what they learn, what they cost, what a place of a genotype does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from maskfront import CellSearch
from objectives.measures.evaluate import divergence, predict
from objectives.measures.measured import measured_flops
from objectives.methods.cells.base.shared_cells import SharedCells
from objectives.problem import Problem
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Graph, Node
from objectives.students.cells.graph_space import GraphSpace
from tests.objectives.conformance import SearchMethodConformance, logits_of, search_alone


class TestCellSearch(SearchMethodConformance):
    quick = CellSearch(width=16, operations=("conv3", "attention"), epochs=1, batch_size=16)


def test_more_training_comes_nearer_to_the_teacher(problem: Problem) -> None:
    short, long = (
        search_alone(
            CellSearch(width=16, operations=("conv3",), epochs=epochs, batch_size=16), problem
        )
        for epochs in (0.25, 8)
    )
    wanted = predict(problem.teacher, problem.alpha, "cpu")
    far = [
        divergence(predict(r.model, problem.alpha, "cpu"), wanted, problem.alpha)
        for r in (short, long)
    ]
    assert far[1] < far[0] / 2


def test_embeddings_and_their_map_end_as_one_table(problem: Problem) -> None:
    found = search_alone(CellSearch(width=16, operations=(), epochs=0.1), problem)
    assert isinstance(found.model, CellForSequenceClassification)
    words = problem.teacher.get_input_embeddings().weight
    own = found.model.get_input_embeddings().weight
    assert own.shape == (len(words), 16)
    fit = torch.linalg.lstsq(words, own)
    assert torch.allclose(words @ fit.solution, own, atol=1e-4)


def test_hidden_states_are_learnt_where_they_weigh(problem: Problem) -> None:
    """The same first weights, nearer to a linear image of the teacher's last states."""
    method = CellSearch(width=16, operations=("conv3",), epochs=30, batch_size=16)
    wanted = hidden_states(problem.teacher, problem)
    left = [
        unexplained(hidden_states(search_alone(own, problem).model, problem), wanted)
        for own in (method, replace(method, hidden_weight=10.0))
    ]
    assert left[1] < 0.95 * left[0]


def hidden_states(model: Any, problem: Problem) -> torch.Tensor:
    """(tokens, dimensions) after the last layer, of the alpha split."""
    batch = next(iter(problem.alpha.in_order(len(problem.alpha), "cpu")))
    with torch.no_grad():
        said = model(batch.input_ids, batch.attention_mask.long(), output_hidden_states=True)
    states: torch.Tensor = said.hidden_states[-1][batch.attention_mask.bool()]
    return functional.layer_norm(states, states.shape[-1:])


def unexplained(states: torch.Tensor, wanted: torch.Tensor) -> float:
    """Mean square of what no linear map of `states` gives of `wanted`."""
    known = torch.cat([states, torch.ones(len(states), 1)], dim=1)
    solved = torch.linalg.lstsq(known, wanted, driver="gelsd").solution
    return float((known @ solved - wanted).square().mean())


def test_a_place_without_an_operation_makes_no_block(problem: Problem) -> None:
    found, shorter = (
        search_alone(CellSearch(width=16, operations=names, epochs=0.1), problem)
        for names in (("none", "conv3", "none"), ("conv3",))
    )
    assert found.architecture.sizes() == shorter.architecture.sizes() == {"conv3": (16,)}
    assert found.architecture == shorter.architecture
    assert measured_flops(found.model, 8) == measured_flops(shorter.model, 8)


def test_a_graph_is_trained_and_two_spellings_are_one_trial(problem: Problem) -> None:
    nodes = (
        Node((0, 0), ("none", "gated")),
        Node((1, 0), ("conv3", "identity")),
        Node((0,), ("max3",)),
    )
    method = CellSearch(width=16, nodes=nodes, epochs=0.5, batch_size=16, pooling=("mean", "min"))
    once = method.canonical()
    assert once.nodes == (
        Node((0,), ("gated",)),
        Node((0, 1), ("identity", "conv3")),
        Node((0,), ("max3",)),
    )
    found, again = (
        search_alone(replace(own, hidden_weight=1.0), problem) for own in (method, once)
    )
    assert found.architecture == again.architecture
    assert found.architecture.sizes()["conv3"] == (0, 16, 0)
    assert torch.equal(logits_of(found, problem), logits_of(again, problem))


def test_a_graph_that_is_a_row_of_blocks_is_that_row() -> None:
    row = CellSearch(operations=("none", "conv3", "gated"))
    graph = CellSearch(nodes=Graph.chain(["conv3", "none", "gated"]).nodes)
    assert graph.canonical() == row.canonical() == CellSearch(operations=("conv3", "gated"))
    assert graph.inactive() == dict.fromkeys(("operations[0]", "operations[1]"), "nodes are given")


@pytest.mark.parametrize("shared", [False, True])
def test_a_recurrent_cell_is_trained_alone_or_with_shared_weights(
    shared: bool, fresh: Problem
) -> None:
    nodes = (Node((0,), ("tanh",)), Node((1,), ("relu",)))
    method = CellSearch(width=16, nodes=nodes, epochs=0.5, batch_size=16, recurrent=True)
    if shared:
        space = GraphSpace(nodes=2, operations=("tanh", "relu", "none"), edges=1)
        method = replace(method, epochs=0, shared=SharedCells(space=space, epochs=0.5))
    found = search_alone(method.canonical(), fresh)
    assert found.architecture == Genotype(16, nodes=nodes, recurrent=True)
    assert isinstance(found.model, CellForSequenceClassification)
    assert found.model.config.recurrent
    assert logits_of(found, fresh).isfinite().all()


def test_noised_rows_are_learnt_from(problem: Problem) -> None:
    method = CellSearch(width=16, operations=("conv3",), epochs=1, batch_size=16)
    plain, more = (search_alone(replace(method, noised=copies), problem).curve for copies in (0, 2))
    assert int(more[-1]["step"]) > 2 * int(plain[-1]["step"])

"""Students of operations: what they learn, what they cost, what a place of a genotype does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from objectives import CellSearch, UserError
from objectives.cells.cell_classifier import CellForSequenceClassification
from objectives.measures.cost import Units
from objectives.measures.evaluate import divergence, predict
from objectives.measures.measured import measured_flops
from objectives.problem import Problem
from objectives.search_method import SearchMethod
from tests.objectives.conformance import SearchMethodConformance, run, search_alone


class TestCellSearch(SearchMethodConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> SearchMethod:
        return CellSearch(width=16, operations=("conv3", "attention"), epochs=1, batch_size=16)


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


def test_the_ratio_is_that_of_the_model(problem: Problem) -> None:
    found = search_alone(CellSearch(width=16, operations=("conv5",), epochs=0.1), problem)
    flops = measured_flops(found.model, problem.seq_len)
    assert found.target_ratio == flops / problem.counted_full


def test_a_place_without_an_operation_makes_no_block(problem: Problem) -> None:
    found, shorter = (
        search_alone(CellSearch(width=16, operations=names, epochs=0.1), problem)
        for names in (("none", "conv3", "none"), ("conv3",))
    )
    assert found.architecture.sizes() == shorter.architecture.sizes() == {"conv3": (16,)}
    assert found.target_ratio == shorter.target_ratio


def test_what_makes_no_model_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of 16"):
        CellSearch(width=24)
    with pytest.raises(UserError, match="did you mean 'conv5'"):
        CellSearch(operations=("conv_5",))


def test_a_cost_that_only_a_bert_has_is_refused(problem: Problem) -> None:
    units = Units(problem.cost.shape, ("heads",))
    counting = replace(problem, counted=units, counted_full=units.full)
    with pytest.raises(UserError, match="count flops, params or bytes"):
        run([CellSearch(width=16, epochs=0.1)], counting)

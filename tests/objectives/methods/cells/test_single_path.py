"""Single path one-shot: one super-net for all trials, and a search that trains nothing."""

from dataclasses import replace
from typing import get_args

import pytest

from maskfront import SinglePath
from objectives.measures.measured import measured_flops
from objectives.methods.cells.base.choosing import scored
from objectives.methods.cells.base.shared_cells import shared_net
from objectives.methods.cells.single_path import Searcher
from objectives.problem import Problem
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY
from objectives.training.scoring import all_alpha
from tests.objectives.conformance import (
    RecordingProgress,
    SearchMethodConformance,
    run,
    search_alone,
)

QUICK = SinglePath(
    **{"width": 16, "nodes": 1, "operations": ("conv3", "max3", IDENTITY), "batch_size": 16},
    **{"search_epochs": 1, "epochs": 1, "candidates": 6},
)


class TestSinglePath(SearchMethodConformance):
    quick = replace(QUICK, nodes=1, search_epochs=0.2, epochs=0.2)


def test_the_super_net_is_trained_once_for_all_trials(fresh: Problem) -> None:
    first, second = RecordingProgress(), RecordingProgress()
    run([QUICK], fresh, first)
    run([replace(QUICK, strategy="random", learning_rate=1e-3, target_ratio=0.1)], fresh, second)
    assert len(first.wanted) == 3, "super-net, choice, cell"
    assert len(second.wanted) == 2


@pytest.mark.parametrize("strategy", get_args(Searcher))
def test_enough_candidates_find_the_best_cell_of_the_super_net(
    strategy: Searcher, fresh: Problem
) -> None:
    method = replace(QUICK, strategy=strategy, candidates=60)
    found = search_alone(method, fresh).architecture
    net, _ = shared_net(method.shared, method.base, fresh, RecordingProgress(), seed=3)
    canonical = method.shared.canonical
    space = method.space
    every = [
        {"nodes[0].operations[0]": one, "nodes[0].operations[1]": other}
        for one in method.operations
        for other in method.operations
    ]
    pairs = list(scored(method, net, map(canonical, every), all_alpha(fresh), fresh))
    turned = [dict(zip(one, reversed(one.values()), strict=True)) for one in every]
    again = scored(method, net, map(canonical, turned), all_alpha(fresh), fresh)
    assert [score for _, score in again] == [score for _, score in pairs], "spellings of one cell"
    best = max(score for _, score in pairs)
    winners = {net.genotype(choices) for choices, score in pairs if score > best - 1e-6}
    assert found in winners
    assert set(space.places) == {"nodes[0].operations[0]", "nodes[0].operations[1]"}


def test_a_cell_may_begin_at_the_weights_of_the_super_net(fresh: Problem) -> None:
    kept = search_alone(replace(QUICK, inherit=True, learning_rate=1e-12), fresh)
    anew = search_alone(replace(QUICK, learning_rate=1e-12), fresh)
    assert kept.architecture == anew.architecture
    assert isinstance(kept.architecture, Genotype)
    assert kept.curve[-1]["loss"] < anew.curve[-1]["loss"]  # type: ignore[operator]


def test_flops_of_a_choice_are_those_of_its_model(fresh: Problem) -> None:
    found = search_alone(QUICK, fresh)
    net, _ = shared_net(QUICK.shared, QUICK.base, fresh, RecordingProgress(), seed=3)
    assert isinstance(found.architecture, Genotype)
    weights = QUICK.space.one_hot(QUICK.space.choices(found.architecture.graph))
    assert net.expected_flops(weights, fresh.seq_len) == measured_flops(found.model, fresh.seq_len)

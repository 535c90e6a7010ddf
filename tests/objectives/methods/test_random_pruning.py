"""Random pruning: a method like the others, whose lots follow from the seed and the draw."""

from dataclasses import replace

import pytest
import torch

from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.problem import Problem
from objectives.pruning.importance import evenly
from tests.conftest import TINY
from tests.objectives.conformance import (
    RECOVER,
    KilledAt,
    KilledError,
    PruningConformance,
    logits_of,
    run,
    search_alone,
)

QUICK = RandomPruning(batch_size=16, tolerance=0.1, stages=(RECOVER,))


class TestConformance(PruningConformance):
    quick = QUICK


def test_a_clock_is_looked_at_without_stages_too(problem: Problem) -> None:
    with pytest.raises(KilledError):
        run([replace(QUICK, stages=())], problem, KilledAt(0))


def test_a_draw_and_a_seed_decide(problem: Problem) -> None:
    drawn = [replace(QUICK, draw=draw).choose(problem, seed) for draw in (0, 1) for seed in (0, 1)]
    assert len(set(drawn)) == 4
    assert QUICK.choose(problem, 0) == drawn[0]


def test_a_smaller_budget_keeps_none_that_a_larger_one_closed(problem: Problem) -> None:
    large, small = (replace(QUICK, target_ratio=r).choose(problem, 0) for r in (0.7, 0.4))
    assert small != large
    for one, other in zip(large.layers, small.layers, strict=True):
        assert set(other.heads) <= set(one.heads)
        assert set(other.ffn) <= set(one.ffn)


def test_scope_layer_is_uniform(problem: Problem) -> None:
    chosen = replace(QUICK, scope="layer", target_ratio=0.5).choose(problem, 0)
    for widths, whole in (
        (chosen.heads_per_layer, TINY.heads),
        (chosen.ffn_per_layer, TINY.ffn),
    ):
        assert max(widths) - min(widths) <= 1
        assert 0.25 * whole <= widths[0] <= 0.75 * whole


def test_scope_layer_keeps_the_first_of_equals() -> None:
    many = torch.tensor([[1.0, 2.0, 1.0, 0.0] * 8] * 2)
    scores = evenly({"heads": torch.ones(2, 4), "ffn": many})
    assert scores["heads"].tolist() == [[0.75, 0.5, 0.25, 0.0]] * 2
    order = scores["ffn"].argsort(dim=-1, descending=True)[0].tolist()
    assert order == sorted(range(32), key=lambda unit: (-many[0, unit].item(), unit))


def test_layers_leave_whole(problem: Problem) -> None:
    chosen = replace(QUICK, spaces=("layers",), target_ratio=0.34).choose(problem, 0)
    assert sorted(bool(layer.dropped) for layer in chosen.layers) == [False, True, True]


def test_what_acts_in_stages_alone_is_idle_without(problem: Problem) -> None:
    bare = replace(QUICK, stages=())
    idle = {"tolerance", "input_bits"}
    assert bare.inactive().keys() == {*idle, "batch_size", "precision"}
    assert QUICK.inactive().keys() == {*idle, "stages.recover.hidden_weight"}
    assert bare.choose(problem, 0) == replace(bare, batch_size=1).choose(problem, 0)


def test_without_stages_the_student_is_only_cut(problem: Problem) -> None:
    bare = search_alone(replace(QUICK, stages=()), problem)
    assert bare.curve == []
    trained = search_alone(QUICK, problem)
    assert bare.architecture == trained.architecture
    assert not logits_of(bare, problem).allclose(logits_of(trained, problem), atol=1e-4)

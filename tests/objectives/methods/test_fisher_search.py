"""The Fisher search: what it owes as a search method, and what its own settings do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from objectives.errors import UserError
from objectives.measures.budget import discretise
from objectives.methods.fisher_search import FisherAlpha, FisherSearch
from objectives.problem import Problem
from objectives.search.importance import importance_of_student
from objectives.search_method import SearchResult
from objectives.training.stages import Stage
from objectives.workbench.workbench import Workbench
from tests.objectives.conformance import (
    PruningConformance,
    counted_flops,
    search_alone,
    training_of,
)
from tests.objectives.planted import PLANTED, planted_problem

SEARCH = Stage(name="search", epochs=1, searches=True, learning_rate=1e-3)
RECOVER = Stage(name="recover", epochs=0.5, learning_rate=1e-3)
QUICK = FisherSearch(batch_size=16, tolerance=0.1, grad_rescale=0.1, stages=(SEARCH, RECOVER))


class TestConformance(PruningConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> FisherSearch:
        return QUICK


def open_ratios(result: SearchResult) -> list[float]:
    return [float(point["open_ratio"]) for point in result.curve if point["stage"] == "search"]


@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("qk",), ("v",), ("ffn", "v")], ids="+".join)
def test_without_a_search_it_cuts_by_the_fisher_information_per_flop(
    problem: Problem, spaces: tuple[str, ...]
) -> None:
    method = replace(QUICK, stages=(RECOVER,), flops_weight=1.0, spaces=spaces, target_ratio=0.8)
    price = problem.cost.of_one_unit()
    expected = discretise(
        {
            s: v / price[s]
            for s, v in importance_of_student(problem, method.spaces, method.squares).items()
        },
        problem.cost,
        target=method.target_ratio * problem.cost_full,
        tolerance=method.tolerance,
        threshold=math.inf,
    )
    assert search_alone(method, problem).architecture == expected


@pytest.mark.parametrize(
    "knobs",
    [{"grad_rescale": 1}, {"flops_weight": 2.0}, {"target_ratio": 0.6}, {"tolerance": 0.02}],
    ids=list,
)
def test_a_knob_changes_the_outcome(problem: Problem, knobs: dict[str, Any]) -> None:
    one, other = (search_alone(m, problem) for m in (QUICK, replace(QUICK, **knobs)))
    assert one.architecture != other.architecture


def test_a_larger_flops_weight_keeps_fewer_of_the_dear_units(problem: Problem) -> None:
    heads = [
        sum(search_alone(replace(QUICK, flops_weight=w), problem).architecture.heads_per_layer)
        for w in (0.0, 1.0, 3.0)
    ]
    assert heads == sorted(heads, reverse=True)
    assert heads[0] > heads[-1]


@pytest.mark.parametrize("schedule", ["cubic", "geometric", "linear", "constant"])
def test_the_budget_falls_as_scheduled_and_every_step_meets_it(
    problem: Problem, schedule: Any
) -> None:
    method = replace(QUICK, target_schedule=schedule, refresh=1, tolerance=0.05)
    ratios = open_ratios(search_alone(method, problem))
    assert ratios == sorted(ratios, reverse=True) or schedule == "constant"
    steps = len(ratios)
    for step, ratio in enumerate(ratios):
        done = step / steps
        wanted = {
            "cubic": 0.5 + 0.5 * (1 - done) ** 3,
            "geometric": 0.5**done,
            "linear": 1 - 0.5 * done,
            "constant": 0.5,
        }[schedule]
        assert abs(ratio / wanted - 1) <= 0.05 + 1e-6


def test_open_units_are_chosen_every_few_steps(problem: Problem) -> None:
    ratios = open_ratios(search_alone(replace(QUICK, refresh=5), problem))
    for start in range(0, len(ratios), 5):
        assert len(set(ratios[start : start + 5])) == 1
    assert len(set(ratios)) > 2


@pytest.mark.parametrize(
    "spaces",
    [("heads", "ffn"), ("heads", "ffn", "v"), ("heads", "ffn", "qk", "v", "input")],
    ids="+".join,
)
def test_a_closed_unit_that_matters_opens_again(problem: Problem, spaces: tuple[str, ...]) -> None:
    """The worths are turned upside down; fresh gradients put them right, of closed units too."""
    planted = planted_problem(problem)
    method = replace(QUICK, target_ratio=0.3, target_schedule="constant", refresh=1, spaces=spaces)
    alpha = FisherAlpha([method], planted, seed=0)
    turned = {space: worth.max() - worth for space, worth in alpha.worth.items()}
    total = sum(float(worth.sum()) for worth in turned.values())
    alpha.worth = {space: worth / total for space, worth in turned.items()}
    training = training_of(planted)
    opened = []
    for _ in range(60):
        masks = alpha.masks(1.0)
        opened.append(bool(masks["heads"][0, 0, 2]))
        alpha.learn(training, masks, 1.0)
    assert not opened[0]
    assert opened[-1]


def test_every_space_is_searched(problem: Problem) -> None:
    spaces = ("heads", "ffn", "qk", "v", "input_qkv")
    method = replace(QUICK, spaces=spaces, target_ratio=0.45, tolerance=0.02)
    found = search_alone(method, problem)
    flops = problem.cost.exact(found.architecture)
    assert flops == counted_flops(found.model, problem.cost.seq_len)
    assert abs(flops / problem.cost_full - 0.45) <= 0.02 * 0.45
    layer = found.architecture.layers[0]
    assert None not in (layer.query_key, layer.value, layer.query_inputs)


def test_the_planted_units_survive(workbench: Workbench, problem: Problem) -> None:
    planted = planted_problem(problem)
    stages = (replace(SEARCH, learning_rate=1e-4),)
    result = search_alone(replace(QUICK, target_ratio=0.1, stages=stages), planted)
    for kept, needed in zip(result.architecture.layers, PLANTED.layers, strict=True):
        assert set(needed.heads) <= set(kept.heads)
        assert set(needed.ffn) <= set(kept.ffn)
    assert workbench.score(result.model, result.architecture).metric == 1


@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("heads", "ffn", "qk", "v", "input")])
def test_worths_are_shares_whatever_the_size_of_the_loss(
    problem: Problem, spaces: tuple[str, ...]
) -> None:
    method = replace(QUICK, target_ratio=0.3, spaces=spaces)
    alpha = FisherAlpha([method, replace(method, grad_rescale=1.0)], problem, seed=0)
    for _ in range(5):
        alpha.learn(training_of(problem, students=2), alpha.masks(1.0), 1.0)
    total = sum(worth.flatten(1).sum(1) for worth in alpha.worth.values())
    torch.testing.assert_close(total, torch.ones(2))


def test_what_lies_in_a_closed_head_keeps_its_worth(problem: Problem) -> None:
    method = replace(QUICK, target_ratio=0.3, spaces=("heads", "ffn", "v"))
    alpha = FisherAlpha([method], problem, seed=0)
    masks = alpha.masks(1.0)
    before = alpha.worth["v"].clone()
    alpha.learn(training_of(problem), masks, 1.0)
    moved = (alpha.worth["v"] != before).any(-1)
    open_heads = masks["heads"] == 1
    assert torch.equal(moved, open_heads)
    assert 0 < open_heads.sum() < open_heads.numel()
    assert (masks["v"][~open_heads] == 1).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops_weight", -1.0),
        ("target_ratio", 0.0),
        ("target_ratio", 1.1),
        ("tolerance", 1.0),
        ("grad_rescale", 0.0),
        ("grad_rescale", 1.1),
        ("batch_size", 0),
        ("target_schedule", "sudden"),
        ("ramp", 0.0),
        ("refresh", 0),
        ("refresh", 2.5),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"FisherSearch\.{field} is .*; it must be"):
        replace(QUICK, **{field: value})

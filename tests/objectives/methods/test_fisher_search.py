"""The Fisher search: what it owes as a search method, and what its own settings do."""

import math
from dataclasses import replace
from typing import Any

import pytest

from objectives.measures.bits import Bytes
from objectives.measures.budget import Budget, discretise
from objectives.measures.cost import Cost, Params, Units
from objectives.measures.latency import Conditions, Latency
from objectives.measures.measured import measured_costs
from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.pruning.importance import importance_of_student
from objectives.students.bert.cutting import cut
from objectives.workbench.workbench import Workbench
from tests.conftest import TINY
from tests.objectives.conformance import (
    RECOVER,
    OnMpnet,
    PruningConformance,
    counted_flops,
    search_alone,
)
from tests.objectives.planted import PLANTED, planted_problem

QUICK = FisherSearch(batch_size=16, tolerance=0.1, stages=(RECOVER,))


LATENCY = Latency(
    TINY,
    Conditions("cpu", 2, 1, 24),
    heads=(0, 1, 4),
    ffn=(0, 48),
    milliseconds=((0.1, 1.0), (1.0, 2.0), (2.5, 3.5)),
    rest=0.5,
)


class TestConformance(PruningConformance):
    quick = QUICK


class TestConformanceOfMpnet(OnMpnet, TestConformance):
    pass


@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("qk",), ("v",), ("ffn", "v")], ids="+".join)
def test_it_cuts_by_the_fisher_information_per_flop(
    problem: Problem, spaces: tuple[str, ...]
) -> None:
    method = replace(QUICK, cost_power=1.0, spaces=spaces, target_ratio=0.8)
    price = problem.budget.cost.of_one_unit()
    expected = discretise(
        {
            s: v / price[s]
            for s, v in importance_of_student(problem, method.spaces, method.squares).items()
        },
        problem.budget.cost,
        target=method.target_ratio * problem.budget.full,
        tolerance=method.tolerance,
        threshold=math.inf,
    )
    assert search_alone(method, problem).architecture == expected


@pytest.mark.parametrize(
    "knobs",
    [{"cost_power": 2.0}, {"target_ratio": 0.6}, {"squares": "loss"}],
    ids=list,
)
def test_a_knob_changes_the_outcome(problem: Problem, knobs: dict[str, Any]) -> None:
    one, other = (search_alone(m, problem) for m in (QUICK, replace(QUICK, **knobs)))
    assert one.architecture != other.architecture


def test_a_larger_cost_power_keeps_fewer_of_the_expensive_units(problem: Problem) -> None:
    heads = [
        sum(search_alone(replace(QUICK, cost_power=w), problem).architecture.heads_per_layer)
        for w in (0.0, 1.0, 3.0)
    ]
    assert heads == sorted(heads, reverse=True)
    assert heads[0] > heads[-1]


def test_every_space_is_searched(problem: Problem) -> None:
    spaces = ("heads", "ffn", "qk", "v", "input_qkv", "layers")
    method = replace(QUICK, spaces=spaces, target_ratio=0.45, tolerance=0.02)
    found = search_alone(method, problem)
    flops = problem.budget.cost.exact(found.architecture)
    assert flops == counted_flops(found.model, problem.seq_len)
    assert abs(flops / problem.budget.full - 0.45) <= 0.02 * 0.45
    layer = next(layer for layer in found.architecture.layers if layer.heads)
    assert None not in (layer.query_key, layer.value, layer.query_inputs)


@pytest.mark.parametrize("cost", ["flops", "params", "units", "bytes", "latency"])
def test_layers_leave_beside_heads_and_neurons_whatever_is_counted(
    problem: Problem, cost: str
) -> None:
    state, spaces = problem.student.state_dict(), ("heads", "ffn", "layers")
    tables = {n: tuple(w.shape) for n, w in state.items() if n.startswith("bert.embeddings.")}
    sizes = sum(math.prod(shape) for shape in tables.values())
    own: Cost = {
        "flops": problem.budget.cost,
        "params": Params(TINY, sizes, tables["bert.embeddings.word_embeddings.weight"][0]),
        "units": Units(TINY, spaces),
        "bytes": Bytes(TINY, tables),
        "latency": LATENCY,
    }[cost]
    counted = replace(problem, budget=Budget(own, own.full))
    method = replace(QUICK, spaces=spaces, target_ratio=0.8 if own.fixed > own.full / 2 else 0.4)
    found = method.choose(counted, 0)
    assert abs(counted.budget.ratio(found) - method.target_ratio) <= 0.1 * method.target_ratio
    scores = method.scores(counted, 0)
    scores["layers"][1] = -math.inf
    shallow = method.within_budget(scores, counted)
    assert shallow.layers[1].dropped
    model = cut(state, problem.student.config, shallow)
    there = [layer for layer in shallow.layers if not layer.dropped]
    measured = {
        **measured_costs(model, problem.seq_len),
        Units(TINY, spaces).unit: sum(len(layer.heads) + len(layer.ffn) + 1 for layer in there),
        LATENCY.unit: LATENCY.rest + sum(LATENCY.layer(layer.widths(TINY)) for layer in there),
    }
    assert own.exact(shallow) == pytest.approx(measured[own.unit], rel=1e-9)


def test_the_planted_units_survive(workbench: Workbench, problem: Problem) -> None:
    planted = planted_problem(problem)
    result = search_alone(replace(QUICK, target_ratio=0.1, stages=()), planted)
    for kept, needed in zip(result.architecture.layers, PLANTED.layers, strict=True):
        assert set(needed.heads) <= set(kept.heads)
        assert set(needed.ffn) <= set(kept.ffn)
    assert workbench.score(result.model, result.architecture).metric == 1

"""TernaryBERT: a whole student that learns with ternary weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from objectives.methods.ternary_bert import TernaryBert
from objectives.problem import Problem
from objectives.students.bert.packing import PackedLinear
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import PruningConformance, search_alone
from tests.objectives.strategies.test_few_bits import far

INSIDE = Stage(name="inside", epochs=0.5, learning_rate=1e-3, loss="intermediate", quantised=True)
SAID = Stage(name="said", epochs=0.5, learning_rate=1e-3, quantised=True)
QUICK = TernaryBert(target_ratio=0.8, batch_size=16, tolerance=0.1, stages=(INSIDE, SAID))


class TestConformance(PruningConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> TernaryBert:
        return QUICK


def test_by_default_nothing_is_cut_and_all_is_ternary(problem: Problem) -> None:
    own = TernaryBert()
    assert own.target_ratio == 1
    (stage,) = own.stages
    found = search_alone(replace(own, stages=(replace(stage, epochs=0.2),)), problem)
    whole = problem.budget.cost.full
    assert problem.budget.cost.exact(found.architecture) == whole
    assert found.architecture.sizes()["weight_bits"] == (2,) * TINY.layers
    assert found.architecture.sizes()["input_bits"] == (8,) * TINY.layers
    assert found.architecture.embedding_bits == 2
    codes = [module.bits for module in found.model.modules() if isinstance(module, PackedLinear)]
    assert codes == [2] * (6 * TINY.layers + 1)


def test_training_wins_back_most_of_what_rounding_costs(problem: Problem) -> None:
    """More than nine tenths of what lies between the model rounded at the end and the teacher."""
    whole = TernaryBert(batch_size=16, embedding_bits=32)
    teacher = far(search_alone(replace(whole, weight_bits=32, stages=()), problem), problem)
    naive = far(search_alone(replace(whole, stages=()), problem), problem)
    learn = Stage(name="learn", epochs=8, learning_rate=3e-3, quantised=True)
    learnt = far(search_alone(replace(whole, stages=(learn,)), problem), problem)
    assert naive > teacher + 0.01
    assert naive - learnt > 0.9 * (naive - teacher)


def test_with_less_the_units_of_most_worth_stay(problem: Problem) -> None:
    chosen = QUICK.choose(problem, 0)
    scores = QUICK.scores(problem, 0)["ffn"]
    kept = [list(layer.ffn) for layer in chosen.layers]
    stay = min(scores[layer][units].min() for layer, units in enumerate(kept) if units)
    gone = [
        scores[layer][unit]
        for layer, units in enumerate(kept)
        for unit in set(range(TINY.ffn)) - set(units)
    ]
    assert gone
    assert sum(value > stay for value in gone) <= 2  # the last may not fit

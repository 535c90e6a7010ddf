"""TernaryBERT: a whole student that learns with ternary weights."""

from dataclasses import replace

import torch

from objectives.methods.ternary_bert import TernaryBert
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.packing import PackedLinear, rounded_inputs
from objectives.students.bert.quantising import quantised
from objectives.training.population import Population, Trace
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import PruningConformance, search_alone
from tests.objectives.pruning.test_few_bits import far

INSIDE = Stage(name="inside", epochs=0.5, learning_rate=1e-3, loss="intermediate", quantised=True)
SAID = Stage(name="said", epochs=0.5, learning_rate=1e-3, quantised=True)
QUICK = TernaryBert(target_ratio=0.8, batch_size=16, tolerance=0.1, stages=(INSIDE, SAID))


class TestConformance(PruningConformance):
    quick = QUICK


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


def test_the_paper_rounds_what_attends_and_learns_all_three_losses(problem: Problem) -> None:
    """By hand: transformers' own attention with Q, K, V and its own weights rounded. What trains is
    what is scored."""
    stage = replace(SAID, loss="prediction+intermediate", hidden_weight=1.0)
    paper = replace(QUICK, target_ratio=1.0, attention_bits=8, stages=(stage,))
    found = search_alone(paper, problem)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.sizes()["attention_bits"] == (8,) * TINY.layers
    assert BertArchitecture.from_json(found.architecture.to_json()) == found.architecture
    batch = next(problem.alpha.in_order(16, "cpu"))
    units = BertArchitecture.full(TINY)
    config = problem.student.config
    model = cut(problem.student.state_dict(), config, units)
    learned = paper.in_bits(units)
    trained = replace(Population.of([model]), rounding=(replace(learned, embedding_bits=None),))
    scored = quantised(model, replace(learned, embedding_bits=None))
    plain = quantised(model, replace(paper, attention_bits=32, embedding_bits=32).in_bits(units))
    with torch.no_grad():
        expected, without = (one(**batch.inputs).logits for one in (scored, plain))
        for trace in (None, Trace()):
            apart = (trained.logits(batch, trace=trace)[0] - expected).abs()
            assert apart.median() < 1e-5  # where a last digit turns a code, two ways part
            assert apart.max() < 0.1
    assert (expected - without).abs().median() > 1e-3

    attention = scored.get_submodule("bert.encoder.layer.0.attention")
    hidden = torch.randn(1, 5, TINY.hidden, generator=torch.Generator().manual_seed(0))
    names = ("query", "key", "value")
    query, key, value = (
        rounded_inputs(attention.self[name](hidden).view(5, TINY.heads, -1).transpose(0, 1), 8)
        for name in names
    )
    weights = rounded_inputs((query @ key.mT / TINY.head_dim**0.5).softmax(-1), 8)
    context = (weights @ value).transpose(0, 1).reshape(1, 5, -1)
    torch.testing.assert_close(attention(hidden, None), attention.output(context, hidden))


def test_bits_of_the_attention_go_with_those_of_weights() -> None:
    assert {"input_bits", "attention_bits"} <= set(TernaryBert(weight_bits=32).inactive())
    mixed = TernaryBert(weight_bits=(32, 2, 8), attention_bits=4)
    layers = mixed.in_bits(BertArchitecture.full(TINY)).layers
    assert [layer.attention_bits for layer in layers] == [None, 4, 4]

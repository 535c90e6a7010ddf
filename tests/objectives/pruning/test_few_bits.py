"""Students whose weights have few bits in the end, or learn with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from objectives.errors import UserError
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.problem import Problem
from objectives.search_method import SearchResult
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.packing import PackedEmbedding, PackedLinear
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import dense, quantised
from objectives.training.computed_weights import rounded_weights
from objectives.training.losses import prediction_loss
from objectives.training.population import Population
from objectives.training.stages import Stage
from objectives.workbench.workbench import Workbench
from tests.conftest import TINY
from tests.objectives.conformance import assert_same, logits_of, run, search_alone
from tests.objectives.pruning.test_staged_search import fuse_as_a_gpu_does

LAYERS = TINY.layers
LEARN = Stage(name="learn", epochs=2, learning_rate=3e-3, quantised=True)
WHOLE = RandomPruning(target_ratio=1.0, tolerance=0.1, batch_size=16, stages=())
TERNARY = replace(WHOLE, weight_bits=2, input_bits=8, embedding_bits=8)


def far(result: SearchResult, problem: Problem) -> float:
    """The loss from the teacher's answers on train."""
    batch = problem.train.batch(np.arange(len(problem.train)), "cpu")
    with torch.no_grad():
        own = result.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    return prediction_loss(own[None], problem.teacher_logits).item()


def test_a_model_is_quantised_after_its_training(problem: Problem) -> None:
    stage = replace(LEARN, quantised=False)
    pruned = replace(WHOLE, target_ratio=0.5, stages=(stage,))
    whole = search_alone(pruned, problem)
    few = search_alone(replace(pruned, weight_bits=4, input_bits=8, embedding_bits=8), problem)
    assert few.architecture == whole.architecture.with_bits([4] * LAYERS, [8] * LAYERS, 8)
    assert isinstance(whole.model, PrunedBertForSequenceClassification)
    expected = quantised(whole.model, few.architecture)
    assert torch.equal(logits_of(few, problem), logits_of(replace(few, model=expected), problem))
    assert (few.target_ratio, few.tolerance) == (0.5, 0.1)


@pytest.mark.parametrize("stages", [(), (LEARN,)], ids=["after", "in training"])
def test_slots_of_other_bits_are_what_they_are_alone(
    problem: Problem, stages: tuple[Stage, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: K students of other bits, cut differently, in one program. In training a last
    digit may turn a code, after which they part: there the first losses are compared."""
    members = [
        replace(WHOLE, stages=stages, target_ratio=ratio, weight_bits=weights, input_bits=inputs)
        for ratio, weights, inputs in ((0.8, 8, 8), (0.4, 2, 8), (0.6, 1, 32), (0.5, 32, 32))
    ]
    alone = [search_alone(member, problem) for member in members]
    fuse_as_a_gpu_does(monkeypatch)
    for one, other in zip(alone, run(members, problem), strict=True):
        assert isinstance(other, SearchResult)
        if not stages:
            assert_same(one, other, problem)
        curves = [[point["loss"] for point in found.curve[:4]] for found in (one, other)]
        np.testing.assert_allclose(*curves, rtol=1e-3)


def test_a_forward_pass_of_training_is_the_packed_model(problem: Problem) -> None:
    units = BertArchitecture.full(TINY)
    mixed = units.with_bits([4, 32, 2], [8, 32, 4], 32)
    population = replace(Population.of([problem.student]), rounding=(mixed,))
    batch = problem.alpha.batch(np.arange(8), "cpu")
    found = search_alone(replace(WHOLE, weight_bits=(4, 32, 2), input_bits=(8, 32, 4)), problem)
    assert found.architecture == mixed
    with torch.no_grad():
        packed = found.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    torch.testing.assert_close(population.logits(batch)[0].detach(), packed, atol=2e-4, rtol=0)


def test_gradients_pass_the_rounding_as_if_there_were_none(problem: Problem) -> None:
    weights = Population.of([problem.student]).weights
    bits = BertArchitecture.full(TINY).with_bits([2] * LAYERS, [8] * LAYERS, 8)
    rounded = rounded_weights(weights, [bits])
    name = "bert.encoder.layer.1.output.dense.weight"
    assert rounded["classifier.weight"] is weights["classifier.weight"]
    assert len(rounded[name].detach()[0, 0].abs().unique()) <= 2
    rounded[name].square().sum().backward()
    torch.testing.assert_close(weights[name].grad, 2 * rounded[name].detach())


def test_a_whole_student_learns_with_its_few_bits(problem: Problem) -> None:
    """It lost no unit, and yet has to learn; it ends nearer than one that is rounded at the end."""
    naive = search_alone(TERNARY, problem)
    learnt = search_alone(replace(TERNARY, stages=(LEARN,)), problem)
    assert far(learnt, problem) < 0.7 * far(naive, problem)
    assert not naive.curve
    assert {point["stage"] for point in learnt.curve} == {"learn"}
    kinds = [type(module) for module in learnt.model.modules()]
    assert kinds.count(PackedLinear) == 6 * LAYERS + 1
    assert kinds.count(PackedEmbedding) == 2


def test_the_best_checkpoint_is_judged_with_its_bits(problem: Problem) -> None:
    seen: list[type] = []

    def scores(model: PrunedBertForSequenceClassification) -> float:
        seen.append(type(model.get_input_embeddings()))
        return 0.0

    best = replace(TERNARY, stages=(replace(LEARN, keep="best"),))
    search_alone(best, replace(problem, select_score=scores))
    assert seen == [PackedEmbedding] * 2


def test_embeddings_of_the_student_stay(problem: Problem) -> None:
    before = {name: w.clone() for name, w in problem.student.state_dict().items()}
    search_alone(replace(TERNARY, embedding_bits=2, vocabulary=0.8, stages=(LEARN,)), problem)
    after = problem.student.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_smaller_vocabulary_is_scored_in_its_own_tokens(workbench: Workbench) -> None:
    problem = workbench.problem
    found = search_alone(replace(WHOLE, vocabulary=0.9), problem)
    pieces = problem.vocabulary.count(0.9)
    assert found.architecture.vocabulary == pieces < problem.student.config.vocab_size
    score = workbench.score(found.model, found.architecture)
    whole = search_alone(WHOLE, problem)
    assert score.metric >= workbench.score(whole.model, whole.architecture).metric - 0.1
    assert len(workbench.tokenizer_of(found.architecture)) == pieces
    assert score.params < workbench.unpruned.params
    torch.testing.assert_close(
        dense(found.model).get_input_embeddings().weight,
        problem.student.get_input_embeddings().weight[problem.vocabulary.kept(pieces)],
    )


def test_what_rounds_nothing_is_idle_and_a_search_rounds_nothing() -> None:
    with pytest.raises(UserError, match="'search': quantised=True is only for stages after"):
        Stage(name="search", epochs=1, searches=True, quantised=True)
    assert "input_bits" in WHOLE.inactive()
    assert "input_bits" not in TERNARY.inactive()

"""Sandwich: what it owes as a search method, and what an order of sublayers is."""

import json
from dataclasses import replace
from itertools import permutations
from math import comb
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.errors import UserError
from objectives.measures.cost import Flops
from objectives.measures.evaluate import count_parameters, predict
from objectives.methods.polish import Polish
from objectives.methods.sandwich import Sandwich
from objectives.problem import Problem
from objectives.pruning import staged_search as independent
from objectives.pruning.staged_search import Chosen
from objectives.search_method import SearchResult
from objectives.students.bert.architecture import BertArchitecture, sandwich
from objectives.students.bert.cutting import cut
from objectives.students.bert.exporting import plain_bert
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.text.data import Batch
from objectives.training.population import Population, Trace, in_order
from tests.conftest import TINY
from tests.objectives.conformance import (
    RECOVER,
    TRAINED_ATOL,
    PruningConformance,
    RecordingProgress,
    counted_flops,
    search_alone,
)
from tests.objectives.hypothesis_strategies import architectures, masks_of
from tests.objectives.methods.test_polish import write_trials

QUICK = Sandwich(k=1, target_ratio=0.6, batch_size=16, tolerance=0.1, stages=(RECOVER,))
ORDERS = sorted({"".join(letters) for letters in permutations("sf" * TINY.layers)})


class TestConformance(PruningConformance):
    quick = QUICK


def ordered(order: str, units: BertArchitecture | None = None) -> BertArchitecture:
    plain = order == "sf" * TINY.layers
    return replace(units or BertArchitecture.full(TINY), order=None if plain else order)


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    return next(problem.alpha.in_order(8, "cpu"))


@torch.no_grad()
def by_hand(model: BertForSequenceClassification, order: str, batch: Batch) -> Tensor:
    """Logits of transformers' own sublayers, one after another."""
    inputs = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids}
    hidden = model.bert.embeddings(**inputs)
    seen = batch.attention_mask[:, None, None].bool()
    layers = {letter: iter(model.bert.encoder.layer) for letter in "sf"}
    for letter in order:
        layer = next(layers[letter])
        if letter == "s":
            hidden = layer.attention(hidden, seen)[0]
        else:
            hidden = layer.feed_forward_chunk(hidden)
    pooled: Tensor = model.bert.pooler(hidden)
    return model.classifier(pooled)  # type: ignore[no-any-return]


@torch.no_grad()
def logits_of(model: PrunedBertForSequenceClassification, batch: Batch) -> Tensor:
    logits: Tensor = model(**batch.inputs).logits
    return logits


def test_a_sandwich_has_attention_first_and_feed_forward_last() -> None:
    assert sandwich(4, 0) == "sfsfsfsf"
    assert sandwich(4, 2) == "ss" + "sfsf" + "ff"
    assert sandwich(16, 6) == "ssssss" + "sf" * 10 + "ffffff"
    for k in range(16):
        order = sandwich(16, k)
        assert (order.count("s"), order.count("f")) == (16, 16)


def test_all_orders_of_as_many_sublayers_are_architectures_and_no_others() -> None:
    assert len(ORDERS) == comb(2 * TINY.layers, TINY.layers)
    for order in ORDERS:
        units = ordered(order)
        units.check(TINY)
        assert BertArchitecture.from_json(units.to_json()) == units
    assert len({ordered(order) for order in ORDERS}) == len(ORDERS)
    full = BertArchitecture.full(TINY)
    assert "order" not in json.loads(full.to_json())
    for order, said in (
        ("sfsf", "the order is 'sfsf'; it must have 3 times 's' and as often 'f'"),
        ("sfsfsx", "the order is 'sfsfsx'"),
        ("sfsfsf", "is that of a plain BERT; leave it out"),
    ):
        with pytest.raises(UserError, match=said):
            replace(full, order=order).check(TINY)
    with pytest.raises(UserError, match="not a maskfront-architecture-1 document"):
        BertArchitecture.from_json(full.to_json()[:-1] + ', "order": 3}')


@pytest.mark.parametrize("order", [sandwich(TINY.layers, k) for k in range(3)] + ["ffssfs"])
def test_an_order_is_that_of_transformers_own_sublayers(
    problem: Problem, batch: Batch, order: str
) -> None:
    """The plain one to the digit, of weights that were copied; all at one cost."""
    student = problem.student
    model = cut(student.state_dict(), student.config, ordered(order))
    torch.testing.assert_close(
        logits_of(model, batch), by_hand(student, order, batch), atol=1e-5, rtol=0
    )
    assert count_parameters(model) == count_parameters(student)
    assert counted_flops(model, 24) == Flops(TINY, 24).full
    if order == sandwich(TINY.layers, 0):
        whole = cut(student.state_dict(), student.config, BertArchitecture.full(TINY))
        assert torch.equal(logits_of(model, batch), logits_of(whole, batch))
        assert plain_bert(model) is not None
    else:
        assert plain_bert(model) is None


@settings(max_examples=8)
@given(units=architectures(TINY, ("heads", "ffn", "layers")), order=st.sampled_from(ORDERS))
def test_masked_is_cut_is_counted_in_any_order(
    problem: Problem, batch: Batch, units: BertArchitecture, order: str
) -> None:
    student = problem.student
    model = cut(student.state_dict(), student.config, ordered(order, units))
    population = replace(Population.of([student]), sublayers=in_order(order))
    masks = masks_of(units, TINY, ("heads", "ffn", "layers"))
    wanted = logits_of(model, batch)
    for found in (population.logits(batch, masks), Population.of([model]).logits(batch)):
        torch.testing.assert_close(found[0].detach(), wanted, atol=1e-5, rtol=0)
    traced = population.logits(batch, masks, trace := Trace())
    torch.testing.assert_close(traced[0].detach(), wanted, atol=1e-5, rtol=0)
    assert len(trace.hidden) == TINY.layers + 1
    assert counted_flops(model, 24) == Flops(TINY, 24).exact(units)


def test_a_saved_model_has_its_order_and_hidden_states_after_every_two_sublayers(
    problem: Problem, batch: Batch, tmp_path: Path
) -> None:
    student = problem.student
    model = cut(student.state_dict(), student.config, ordered(sandwich(TINY.layers, 2)))
    model.save_pretrained(tmp_path)
    loaded = PrunedBertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, batch), logits_of(model, batch))
    trace = Trace()
    Population.of([model]).logits(batch, trace=trace)
    states = model(**batch.inputs, output_hidden_states=True).hidden_states
    for mine, other in zip(states, trace.hidden, strict=True):
        attended = batch.attention_mask
        torch.testing.assert_close(mine[attended], other[0][attended], atol=1e-4, rtol=0)


def test_each_k_is_another_model_at_one_cost_and_trains(problem: Problem) -> None:
    """k in [0, layers - 1]. Only that the training works, and that the cost stays."""
    whole = replace(QUICK, target_ratio=1.0)
    for k in range(TINY.layers):
        found = search_alone(replace(whole, k=k), problem)
        assert found.architecture == ordered(sandwich(TINY.layers, k))
        assert problem.budget.ratio(found.architecture) == 1
        untrained = cut(problem.student.state_dict(), problem.student.config, found.architecture)
        moved = predict(found.model, problem.alpha, "cpu") - predict(
            untrained, problem.alpha, "cpu"
        )
        assert (moved.abs().max() > 1e-3) == (k > 0), "the plain order lost nothing"


def test_one_that_lost_nothing_but_its_order_is_polished(problem: Problem, tmp_path: Path) -> None:
    found = search_alone(replace(QUICK, k=1, target_ratio=1.0), problem)
    trials = write_trials(tmp_path, [found])
    polish = Polish(trials=trials, batch_size=16, stages=QUICK.stages)
    polished = search_alone(polish, problem)
    assert polished.architecture == found.architecture
    before, after = (predict(one.model, problem.alpha, "cpu") for one in (found, polished))
    assert (after - before).abs().max() > 1e-3


def test_students_of_several_orders_in_one_population_train_as_they_do_alone(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU trains them, and as `Polish` may have them: those of one order together."""
    monkeypatch.setattr(independent, "_groups", lambda slots, device: [slots])
    chosen = [ordered(sandwich(TINY.layers, k)) for k in (0, 2, 0, 1)]

    def searched(own: list[BertArchitecture]) -> list[SearchResult]:
        found = independent.staged_search(
            [QUICK] * len(own), problem, Chosen(own), seed=3, progress=RecordingProgress()
        )
        return sorted(found, key=lambda outcome: outcome.slot)  # type: ignore[arg-type]

    together = searched(chosen)
    for slot, units in enumerate(chosen):
        assert together[slot].architecture == units
        (alone,) = searched([units])
        torch.testing.assert_close(
            *(predict(found.model, problem.alpha, "cpu") for found in (together[slot], alone)),
            atol=TRAINED_ATOL,
            rtol=0,
        )


def test_a_cell_can_be_a_sandwich_too() -> None:
    """A chain of the same blocks has as many parameters in each order, and its own answers."""
    names = {"s": "attention", "f": "feed_forward"}
    answers, sizes = [], set()
    for k in range(3):
        operations = tuple(names[letter] for letter in sandwich(3, k))
        assert Genotype(width=16, operations=operations).operations == operations
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = CellForSequenceClassification(
                CellConfig(vocab_size=20, hidden_size=16, operations=operations, num_labels=3)
            )
        sizes.add(count_parameters(model))
        answers.append(model.train(False)(torch.arange(1, 8)[None]).logits)
    assert len(sizes) == 1
    assert not torch.allclose(answers[0], answers[1])

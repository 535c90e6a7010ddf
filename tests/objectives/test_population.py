"""K students as one program: each slot is the model that its masks would cut, and no other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertForSequenceClassification

from objectives.architecture import Architecture
from objectives.data import Batch
from objectives.population import Population
from objectives.pretrained import Classifier
from objectives.problem import Problem
from objectives.pruned_bert import cut
from tests.conftest import TINY
from tests.objectives.conformance import ATOL
from tests.objectives.strategies import architectures
from tests.objectives.test_cost import masks_of


@pytest.fixture(scope="module")
def students(problem: Problem) -> list[BertForSequenceClassification]:
    """Three students with the same embeddings and different weights."""
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(3):
        model = BertForSequenceClassification(problem.student.config).eval()
        model.load_state_dict(
            {
                name: value
                if "embeddings" in name
                else value + 0.05 * torch.randn(value.shape, generator=generator)
                for name, value in problem.student.state_dict().items()
            }
        )
        models.append(model)
    return models


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    """Sequences of different lengths, so that some are padded."""
    drawn = problem.alpha.batch(np.arange(6), "cpu")
    assert not drawn.attention_mask.all()
    return drawn


@torch.no_grad()
def logits_of(model: Classifier, batch: Batch) -> torch.Tensor:
    return model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        token_type_ids=batch.token_type_ids,
    ).logits


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("size", [1, 3])
@given(data=st.data())
def test_a_masked_slot_is_the_cut_model(
    students: list[BertForSequenceClassification], batch: Batch, size: int, data: st.DataObject
) -> None:
    population = Population.of(students[:size])
    drawn = [data.draw(architectures(TINY)) for _ in range(size)]
    each = [masks_of(architecture, TINY) for architecture in drawn]
    masks = {space: torch.cat([m[space] for m in each]) for space in each[0]}
    logits = population.logits(batch, masks).detach()
    for slot, architecture in enumerate(drawn):
        model = cut(population.slot(slot), students[slot].config, architecture)
        close(logits[slot], logits_of(model, batch))


@given(st.lists(architectures(TINY), min_size=2, max_size=2))
def test_a_population_of_cut_models_is_those_models(
    problem: Problem, batch: Batch, drawn: list[Architecture]
) -> None:
    for architecture in drawn:
        model = cut(problem.student.state_dict(), problem.student.config, architecture)
        close(Population.of([model]).logits(batch)[0].detach(), logits_of(model, batch))


def test_an_unmasked_slot_is_berts_own_classifier(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    logits = Population.of(students).logits(batch).detach()
    for slot, student in enumerate(students):
        close(logits[slot], logits_of(student, batch))
    assert (logits[0] - logits[1]).abs().min() > 100 * ATOL


def test_every_unit_moves_the_logits(problem: Problem, batch: Batch) -> None:
    """Else masked and cut models could agree because nothing matters."""
    population = Population.of([problem.student])
    open_logits = population.logits(batch).detach()
    for space, units in (("heads", TINY.heads), ("ffn", TINY.ffn)):
        for layer in range(TINY.layers):
            for unit in range(units):
                mask = torch.ones(1, TINY.layers, units)
                mask[0, layer, unit] = 0
                moved = population.logits(batch, {space: mask}).detach() - open_logits
                assert moved.abs().max() > 10 * ATOL, (space, layer, unit)


def test_padding_does_not_count(problem: Problem) -> None:
    population = Population.of([problem.student])
    rows = np.arange(6)
    padded = population.logits(problem.alpha.batch(rows, "cpu"))[0]
    alone = [population.logits(problem.alpha.batch(rows[[row]], "cpu"))[0, 0] for row in rows]
    close(padded.detach(), torch.stack(alone).detach())


def test_masks_of_each_sequence_act_on_their_own_sequence(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    population = Population.of(students)
    generator = torch.Generator().manual_seed(1)
    sequences = len(batch.rows)
    masks = {
        space: torch.rand(3, sequences, TINY.layers, units, generator=generator)
        for space, units in (("heads", TINY.heads), ("ffn", TINY.ffn))
    }
    logits = population.logits(batch, masks).detach()
    for row in range(sequences):
        of_row = {space: mask[:, row] for space, mask in masks.items()}
        close(logits[:, row], population.logits(batch, of_row).detach()[:, row])


def test_a_slots_state_loads_into_berts_own_classifier(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    population = Population.of(students)
    with torch.no_grad():
        for weight in population.weights.values():
            weight += 0.01
    model = BertForSequenceClassification(students[1].config).eval()
    model.load_state_dict(population.slot(1))
    close(logits_of(model, batch), population.logits(batch)[1].detach())


def test_embeddings_are_stored_once_and_frozen(
    students: list[BertForSequenceClassification],
) -> None:
    population = Population.of(students)
    assert not any("embeddings" in name for name in population.weights)
    assert all(weight.shape[0] == population.size == 3 for weight in population.weights.values())
    assert not any(weight.requires_grad for weight in population.embeddings.parameters())
    name = "bert.embeddings.word_embeddings.weight"
    assert population.slot(0)[name].data_ptr() == population.slot(2)[name].data_ptr()


def test_no_students_gradient_reaches_another(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    population = Population.of(students)
    population.logits(batch)[1].square().sum().backward()
    for name, weight in population.weights.items():
        assert weight.grad is not None
        assert weight.grad[1].any() or name.endswith("key.bias"), name
        assert not weight.grad[[0, 2]].any(), name

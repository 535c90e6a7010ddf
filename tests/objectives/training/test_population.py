"""K students as one program: each slot is the model that its masks would cut, and no other."""

import copy
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertForSequenceClassification

from objectives.problem import Problem
from objectives.students.bert.architecture import SPACES, units_of
from objectives.students.bert.cutting import cut
from objectives.students.bert.pretrained import Classifier
from objectives.text.data import Batch
from objectives.training.population import Population
from tests.conftest import TINY
from tests.objectives.conformance import ATOL
from tests.objectives.hypothesis_strategies import EACH_COMBINATION, architectures, masks_of


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


def doubled(model: Classifier) -> Classifier:
    """A copy in float64, in which two ways to the same logits agree to 1e-10."""
    return copy.deepcopy(model).double()


def logits_are_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=4)
@given(data=st.data(), size=st.sampled_from([1, 3]))
def test_a_masked_slot_is_the_cut_model(
    students: list[BertForSequenceClassification],
    batch: Batch,
    data: st.DataObject,
    size: int,
    spaces: tuple[str, ...],
) -> None:
    population = Population.of([doubled(student) for student in students[:size]])
    drawn = [data.draw(architectures(TINY, spaces)) for _ in range(size)]
    each = [masks_of(architecture, TINY, spaces) for architecture in drawn]
    masks = {space: torch.cat([m[space] for m in each]).double() for space in spaces}
    logits = population.logits(batch, masks).detach()
    for slot, architecture in enumerate(drawn):
        model = cut(students[slot].state_dict(), students[slot].config, architecture)
        expected = logits_of(doubled(model), batch)
        torch.testing.assert_close(logits[slot], expected, atol=1e-10, rtol=0)


def test_an_unmasked_slot_is_berts_own_classifier(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    logits = Population.of(students).logits(batch).detach()
    for slot, student in enumerate(students):
        logits_are_close(logits[slot], logits_of(student, batch))
    assert (logits[0] - logits[1]).abs().min() > 100 * ATOL


def test_every_unit_moves_the_logits(problem: Problem, batch: Batch) -> None:
    """Else masked and cut models could agree because nothing matters."""
    population = Population.of([problem.student])
    open_logits = population.logits(batch).detach()
    for space in SPACES:
        for layer in range(TINY.layers):
            for unit in range(prod(units_of(TINY, space))):
                mask = torch.ones(1, TINY.layers, *units_of(TINY, space))
                mask[0, layer].view(-1)[unit] = 0
                moved = population.logits(batch, {space: mask}).detach() - open_logits
                assert moved.abs().max() > 2 * ATOL, (space, layer, unit)


def test_a_soft_mask_of_qk_is_as_steep_at_0_as_at_1(problem: Problem, batch: Batch) -> None:
    """On both of them it would act squared, and a closed dimension could not reopen."""
    population = Population.of([problem.student])
    for value in (0.0, 1.0):
        mask = torch.full((1, TINY.layers, *units_of(TINY, "qk")), value, requires_grad=True)
        population.logits(batch, {"qk": mask}).square().sum().backward()
        assert mask.grad is not None
        assert mask.grad.abs().median() > 1e-3


def test_the_residual_path_keeps_what_q_k_and_v_do_not_read(problem: Problem, batch: Batch) -> None:
    population = Population.of([problem.student])
    nothing_read = torch.zeros(1, TINY.layers, *units_of(TINY, "input"))
    no_biases = {
        name: value if "attention.self" not in name or "weight" in name else 0 * value
        for name, value in problem.student.state_dict().items()
    }
    student = copy.deepcopy(problem.student)
    student.load_state_dict(no_biases)
    nothing_attended = {"heads": torch.zeros(1, TINY.layers, *units_of(TINY, "heads"))}
    logits_are_close(
        Population.of([student]).logits(batch, {"input": nothing_read}).detach(),
        population.logits(batch, nothing_attended).detach(),
    )


def test_padding_does_not_count(problem: Problem) -> None:
    population = Population.of([problem.student])
    rows = np.arange(6)
    padded = population.logits(problem.alpha.batch(rows, "cpu"))[0]
    alone = [population.logits(problem.alpha.batch(rows[[row]], "cpu"))[0, 0] for row in rows]
    logits_are_close(padded.detach(), torch.stack(alone).detach())


def test_masks_of_each_sequence_act_on_their_own_sequence(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    population = Population.of(students)
    generator = torch.Generator().manual_seed(1)
    sequences = len(batch.rows)
    drawn = {
        space: torch.rand(3, sequences, TINY.layers, *units_of(TINY, space), generator=generator)
        for space in SPACES
    }
    for other in ("input", "input_qkv"):
        masks = {space: mask for space, mask in drawn.items() if space != other}
        logits = population.logits(batch, row_masks=masks).detach()
        for row in range(sequences):
            of_row = {space: mask[:, row] for space, mask in masks.items()}
            logits_are_close(logits[:, row], population.logits(batch, of_row).detach()[:, row])


@pytest.mark.parametrize("space", SPACES)
def test_the_gradient_of_a_mask_is_the_sum_over_its_sequences(
    students: list[BertForSequenceClassification], batch: Batch, space: str
) -> None:
    """The one comes by way of the weights, the other by way of what the units put out."""
    population = Population.of([doubled(student) for student in students])
    generator = torch.Generator().manual_seed(1)
    size = (3, TINY.layers, *units_of(TINY, space))
    mask = torch.rand(size, generator=generator, dtype=torch.float64, requires_grad=True)
    of_rows = mask.detach()[:, None].expand(-1, len(batch.rows), *mask.shape[1:])
    of_rows = of_rows.clone().requires_grad_()
    by_weights = population.logits(batch, {space: mask}).square().sum()
    by_units = population.logits(batch, row_masks={space: of_rows}).square().sum()
    whole, each = (
        torch.autograd.grad(loss, masks)[0]
        for loss, masks in ((by_weights, mask), (by_units, of_rows))
    )
    assert whole.abs().median() > 1e-4
    torch.testing.assert_close(each.sum(1), whole, atol=1e-10, rtol=0)


def test_a_slots_state_loads_into_berts_own_classifier(
    students: list[BertForSequenceClassification], batch: Batch
) -> None:
    population = Population.of(students)
    with torch.no_grad():
        for weight in population.weights.values():
            weight += 0.01
    model = BertForSequenceClassification(students[1].config).eval()
    model.load_state_dict(population.slot(1))
    logits_are_close(logits_of(model, batch), population.logits(batch)[1].detach())


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

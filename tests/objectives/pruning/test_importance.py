"""Fisher information of the masks, against a loop over examples and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertForSequenceClassification

from objectives.problem import Problem
from objectives.pruning.importance import (
    Squares,
    directions,
    gradients_of_rows,
    importance_of_student,
    mean_over_rows,
)
from objectives.students.bert.architecture import units_of
from objectives.students.bert.student import keep_layers
from objectives.text.data import Split
from objectives.training.population import Population
from tests.conftest import TINY
from tests.objectives.planted import PLANTED, planted_problem


def squares_of(
    model: BertForSequenceClassification, split: Split, spaces: tuple[str, ...], of: Squares
) -> dict[str, Tensor]:
    """Fisher information of the masks of a tiny model."""
    gradients = gradients_of_rows(model, split, open_masks(spaces), of, "cpu")
    return mean_over_rows(gradients, len(split), Tensor.square)


def first_rows(split: Split, rows: int) -> Split:
    return replace(
        split,
        input_ids=split.input_ids[:rows],
        token_type_ids=split.token_type_ids[:rows],
        labels=split.labels[:rows],
    )


def twice(split: Split) -> Split:
    return replace(
        split,
        input_ids=[row for row in split.input_ids for _ in range(2)],
        token_type_ids=[row for row in split.token_type_ids for _ in range(2)],
        labels=split.labels.repeat(2),
    )


SPACES = ("heads", "ffn", "qk", "v", "input_qkv")


def open_masks(spaces: tuple[str, ...] = SPACES) -> dict[str, Tensor]:
    return {space: torch.ones(1, TINY.layers, *units_of(TINY, space)) for space in spaces}


def loss_of_row(population: Population, split: Split, row: int, masks: dict[str, Tensor]) -> Tensor:
    batch = split.batch(np.array([row]), "cpu")
    return functional.cross_entropy(population.logits(batch, masks)[0], batch.labels)


@pytest.fixture(scope="module")
def uncertain(problem: Problem) -> Problem:
    """The problem with a student whose loss is not near 0: its classifier is turned down."""
    student = planted_problem(problem).student
    student.load_state_dict(problem.student.state_dict())
    with torch.no_grad():
        student.classifier.weight *= 0.2
    return replace(problem, student=student)


@pytest.mark.parametrize("spaces", [SPACES, ("input",)], ids="+".join)
def test_it_is_the_mean_over_rows_of_each_rows_squared_gradient(
    uncertain: Problem, spaces: tuple[str, ...]
) -> None:
    split = first_rows(uncertain.alpha, 40)  # more than one batch
    population = Population.of([uncertain.student])
    expected = {space: torch.zeros(mask.shape[1:]) for space, mask in open_masks(spaces).items()}
    for row in range(len(split)):
        masks = {space: mask.requires_grad_() for space, mask in open_masks(spaces).items()}
        loss_of_row(population, split, row, masks).backward()
        for space, mask in masks.items():
            assert mask.grad is not None
            expected[space] += mask.grad[0].square() / len(split)
    actual = squares_of(uncertain.student, split, spaces, "loss")
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-9)


def test_it_agrees_with_finite_differences_of_the_loss(uncertain: Problem) -> None:
    split = first_rows(uncertain.alpha, 1)
    population = Population.of([uncertain.student])
    importance = squares_of(uncertain.student, split, SPACES, "loss")
    for space, value in importance.items():
        for place in value.flatten().topk(3).indices.tolist():
            losses = []
            for change in (0.01, -0.01):
                masks = open_masks()
                masks[space].flatten()[place] += change
                losses.append(loss_of_row(population, split, 0, masks).item())
            slope = (losses[0] - losses[1]) / 0.02
            assert value.flatten()[place].item() == pytest.approx(slope**2, rel=0.02)


def test_squares_of_logits_are_how_far_their_differences_move(uncertain: Problem) -> None:
    """Each row stands there once for every axis of the differences of its three logits."""
    split = twice(first_rows(uncertain.alpha, 6))
    population = Population.of([uncertain.student])
    expected = {space: torch.zeros(mask.shape[1:]) for space, mask in open_masks().items()}
    for row in range(len(split)):
        masks = {space: mask.requires_grad_() for space, mask in open_masks().items()}
        logits = population.logits(split.batch(np.array([row]), "cpu"), masks)[0, 0]
        for value in logits - logits.mean():
            gradients = torch.autograd.grad(value, list(masks.values()), retain_graph=True)
            for space, gradient in zip(masks, gradients, strict=True):
                expected[space] += gradient[0].square() / len(split)
    actual = squares_of(uncertain.student, split, SPACES, "logits")
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 2, 3, 7])
def test_the_directions_of_logits_stand_for_all_their_differences(outputs: int) -> None:
    rows = torch.arange(6 * max(1, outputs - 1))
    axes = directions(rows, outputs)
    covariance = axes.T @ axes / len(rows)
    differences = torch.eye(outputs) - (1 / outputs if outputs > 1 else 0)
    torch.testing.assert_close(covariance, differences)
    rows = torch.arange(6 * outputs)
    axes = directions(rows, outputs, several=True)
    torch.testing.assert_close(axes.T @ axes / len(rows), torch.eye(outputs))


def test_units_without_effect_have_none_and_planted_units_have_some(problem: Problem) -> None:
    planted = planted_problem(problem)
    importance = squares_of(planted.student, planted.alpha, SPACES, "loss")
    for space in ("heads", "ffn"):
        found = [tuple(row.nonzero().flatten().tolist()) for row in importance[space]]
        assert found == [getattr(layer, space) for layer in PLANTED.layers]
    first, head = PLANTED.layers[0], PLANTED.layers[0].heads[0]
    assert first.value is not None
    assert first.value_inputs is not None
    dimensions = [[0, head, dimension] for dimension in first.value[0]]
    assert importance["v"].nonzero().tolist() == dimensions
    assert importance["input_qkv"].nonzero().tolist() == [[0, 2, i] for i in first.value_inputs]
    assert not importance["qk"].any()


def test_only_the_spaces_that_are_asked_for_are_measured(problem: Problem) -> None:
    split = first_rows(problem.alpha, 2)
    both = squares_of(problem.student, split, SPACES, "loss")
    one = squares_of(problem.student, split, ("ffn",), "loss")
    assert one.keys() == {"ffn"}
    torch.testing.assert_close(one["ffn"], both["ffn"])


def test_units_of_some_layers_of_the_teacher_are_worth_what_they_are_in_it(
    problem: Problem,
) -> None:
    layers = (0, 2)
    student = keep_layers(problem.teacher, layers)
    shallow = replace(problem, student=student, student_layers=layers)
    found = importance_of_student(shallow, ("heads", "ffn"), "logits")
    whole = importance_of_student(problem, ("heads", "ffn"), "logits")
    alone = importance_of_student(replace(shallow, student_layers=None), ("heads",), "logits")
    for space, scores in found.items():
        torch.testing.assert_close(scores, whole[space][[0, 2]])
    assert not torch.allclose(found["heads"], alone["heads"], rtol=1e-2)

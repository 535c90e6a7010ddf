"""Weights between those of a training and those that it began with."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier
from objectives.weights.interpolated import between, nearest


@pytest.fixture
def trained(problem: Problem) -> Classifier:
    """The student, moved away from where it began."""
    model = copy.deepcopy(problem.student)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.bert.encoder.named_parameters():
            if name.endswith("dense.weight"):
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return model


def weights(model: Classifier) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in model.state_dict().values()])


def test_the_ends_are_the_models_themselves(problem: Problem, trained: Classifier) -> None:
    assert between(trained, problem.student, 0) is trained
    assert weights(between(trained, problem.student, 1)).equal(weights(problem.student))
    middle = weights(between(trained, problem.student, 0.5))
    ends = weights(trained), weights(problem.student)
    torch.testing.assert_close(middle, (ends[0] + ends[1]) / 2)


def test_the_whole_model_is_the_teacher_again(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    assert weights(nearest(problem, trained, whole)).equal(weights(problem.student))


def test_what_is_nearer_as_trained_stays(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    away = replace(problem, student=trained)
    assert nearest(away, problem.student, whole) is problem.student


def test_a_new_checkpoint_is_no_way_back(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    assert nearest(replace(problem, student_is_new=True), trained, whole) is trained

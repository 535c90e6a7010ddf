"""Weights between those of a training and those that it began with."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from objectives.methods.elastic.elastic_search import between, nearest
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier


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


def flat(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])


def test_the_ends_are_the_models_themselves(problem: Problem, trained: Classifier) -> None:
    ends = [flat(model.state_dict()) for model in (trained, problem.student)]
    at = [flat(between(trained, problem.student, share)) for share in (0, 0.5, 1)]
    assert at[0].equal(ends[0])
    assert at[2].equal(ends[1])
    torch.testing.assert_close(at[1], (ends[0] + ends[1]) / 2)


def test_the_whole_model_is_the_teacher_again(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    found = nearest(problem, trained, whole, whole)
    assert flat(found.state_dict()).equal(flat(problem.student.state_dict()))


def test_what_is_nearer_as_trained_stays(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    away = replace(problem, student=trained)
    assert nearest(away, problem.student, whole, whole) is problem.student


def test_a_new_checkpoint_is_no_way_back(problem: Problem, trained: Classifier) -> None:
    whole = BertArchitecture.full(problem.shape)
    assert nearest(replace(problem, student_is_new=True), trained, whole, whole) is trained

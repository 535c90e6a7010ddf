"""Scores of answers on the alpha split."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from objectives.problem import Problem
from objectives.text.data import Batch, Split
from objectives.training.scoring import logits_score


def alpha_of(labels: Any) -> tuple[Problem, Batch]:
    """The problem with these labels, and one batch of all rows."""
    rows = [[1]] * len(labels)
    alpha = Split("alpha", rows, rows, np.array(labels), 0, 8)
    return cast("Problem", SimpleNamespace(alpha=alpha)), next(alpha.in_order(8, "cpu"))


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1], np.array([[1, 0], [0, 0], [1, 1]], np.int8), np.eye(3, 8, dtype=np.int8)],
)
def test_a_guess_scores_one_half_however_many_labels_a_text_has(labels: Any) -> None:
    problem, batch = alpha_of(labels)
    width = np.shape(labels)[-1] if np.ndim(labels) == 2 else 2
    guess = torch.zeros(3, width)
    assert logits_score(lambda _: guess, [batch], problem) == pytest.approx(0.5)


def test_an_error_of_the_labels_own_spread_scores_one_over_e() -> None:
    numbers = np.array([1.0, 2.0, 6.0], np.float32)
    problem, batch = alpha_of(numbers)
    mean = torch.full((3, 1), 3.0)
    assert logits_score(lambda _: mean, [batch], problem) == pytest.approx(np.exp(-1))
    wrong = torch.full((3, 1), torch.nan)
    assert logits_score(lambda _: wrong, [batch], problem) == 0

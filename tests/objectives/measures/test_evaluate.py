"""Scoring: logits in the order of the rows, metric and size of the model itself."""

import copy
import math

import numpy as np
import pytest
import torch

from objectives.measures import evaluate
from objectives.measures.evaluate import (
    count_parameters,
    divergence,
    metric_of,
    nearness,
    predict,
    score,
)
from objectives.workbench.workbench import Workbench


def test_predictions_stand_in_the_order_of_the_rows(workbench: Workbench) -> None:
    model, split = workbench.problem.student, workbench.problem.train
    logits = predict(model, split, "cpu")
    for row in (0, 17, len(split) - 1):
        batch = split.batch(np.array([row]), "cpu")
        alone = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        torch.testing.assert_close(logits[[row]], alone, atol=1e-5, rtol=0)


def test_the_score_is_the_metric_of_the_most_likely_labels(workbench: Workbench) -> None:
    model, split = workbench.problem.student, workbench.problem.alpha
    hits = predict(model, split, "cpu").argmax(-1).numpy() == split.labels
    assert score(model, split, "accuracy", "cpu") == hits.mean()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_have_no_metric(workbench: Workbench, bad: float) -> None:
    split = workbench.problem.alpha
    logits = torch.zeros(len(split), 3)
    assert metric_of(logits, split, "accuracy") == np.mean(split.labels == 0)
    logits[5, 1] = bad
    assert math.isnan(metric_of(logits, split, "accuracy"))


def test_the_divergence_is_the_mean_over_rows_of_what_the_teacher_would_lose(
    workbench: Workbench,
) -> None:
    """By hand, row by row: sum of p ln(p / q), p the teacher's."""
    split = workbench.select
    teacher, own = torch.randn(2, len(split), 3, generator=torch.Generator().manual_seed(0)) * 4
    p, q = (np.exp(one.double().numpy()) for one in (teacher, own))
    p, q = (one / one.sum(1, keepdims=True) for one in (p, q))
    by_hand = float((p * np.log(p / q)).sum(1).mean())
    assert divergence(own, teacher, split) == pytest.approx(by_hand, rel=1e-12)
    assert divergence(teacher, own, split) != pytest.approx(by_hand, rel=0.01), "it has a direction"
    assert divergence(own + 7, teacher, split) == pytest.approx(by_hand, rel=1e-6)
    assert divergence(teacher, teacher, split) == 0
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(1))
    assert divergence(own[order], teacher[order], split) == pytest.approx(by_hand, rel=1e-12)
    assert divergence(own[order], teacher, split) != pytest.approx(by_hand, rel=0.01)
    own[3, 1] = math.nan
    assert math.isnan(divergence(own, teacher, split))


def test_a_divergence_near_zero_is_not_lost(workbench: Workbench) -> None:
    """Of two answers it is about d^2 p (1 - p) / 2, where the logits differ by d: here 1e-10."""
    teacher = torch.tensor([[1.0, 0.0]]).expand(len(workbench.select), 2)
    own = teacher + torch.tensor([3e-5, 0.0])
    p = math.e / (1 + math.e)
    step = float(own[0, 0].double()) - 1
    found = divergence(own, teacher, workbench.select)
    assert found == pytest.approx(step**2 * p * (1 - p) / 2, rel=1e-3)


@pytest.mark.parametrize("size", [1, 7])
def test_the_divergence_does_not_depend_on_the_batches(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    model, teacher = copy.deepcopy(workbench.problem.student), workbench.teacher_answers["select"]
    with torch.no_grad():
        model.classifier.weight *= 0.5
    whole = nearness(model, workbench.select, teacher, "cpu")
    assert whole < -0.01
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH", size)
    assert nearness(model, workbench.select, teacher, "cpu") == pytest.approx(whole, rel=1e-4)


def test_parameters_are_counted_with_the_embeddings(workbench: Workbench) -> None:
    words = 5 + 3 + 40
    embeddings = (words + 64 + 2) * 32 + 2 * 32
    attention = 4 * (32 * 32 + 32) + 2 * 32
    feed_forward = 2 * 32 * 48 + 48 + 32 + 2 * 32
    head = 32 * 32 + 32 + 3 * 32 + 3
    expected = embeddings + 3 * (attention + feed_forward) + head
    assert count_parameters(workbench.problem.student) == expected

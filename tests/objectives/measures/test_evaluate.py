"""Scoring: logits in the order of the rows, metric and size of the model itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from objectives.measures.evaluate import count_parameters, metric_of, predict, score
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


def test_parameters_are_counted_with_the_embeddings(workbench: Workbench) -> None:
    words = 5 + 3 + 40
    embeddings = (words + 64 + 2) * 32 + 2 * 32
    attention = 4 * (32 * 32 + 32) + 2 * 32
    feed_forward = 2 * 32 * 48 + 48 + 32 + 2 * 32
    head = 32 * 32 + 32 + 3 * 32 + 3
    expected = embeddings + 3 * (attention + feed_forward) + head
    assert count_parameters(workbench.problem.student) == expected

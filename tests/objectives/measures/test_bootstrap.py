"""The interval of a metric: against theory, and against a bootstrap row by row."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from objectives.measures import bootstrap
from objectives.measures.bootstrap import (
    FEWEST,
    bootstrap_interval,
    resampled_metrics,
    resampled_together,
)
from objectives.metric import Metric, metric_value


def answers(rows: int, good: float, labels: int = 2) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    truth = generator.integers(labels, size=rows)
    wrong = (truth + generator.integers(1, labels, size=rows)) % labels
    return truth, np.where(generator.random(rows) < good, truth, wrong)


def test_accuracy_has_the_interval_of_a_binomial() -> None:
    truth, said = answers(1000, 0.85)
    share = float((truth == said).mean())
    low, high = bootstrap_interval("accuracy", truth, said)
    spread = 1.96 * math.sqrt(share * (1 - share) / 1000)
    assert (low, high) == pytest.approx((share - spread, share + spread), abs=0.004)


def test_a_correlation_is_drawn_by_rows() -> None:
    generator = np.random.default_rng(1)
    truth = generator.normal(size=400).astype(np.float32)
    said = (truth + generator.normal(size=400)).astype(np.float32)
    low, high = bootstrap_interval("pearson_spearman", truth, said)
    value = metric_value("pearson_spearman", truth, said)
    assert low < value < high
    assert high - low == pytest.approx(2 * 1.96 * (1 - value**2) / 20, rel=0.3)


def test_the_same_answers_have_the_same_interval_and_perfect_ones_have_none() -> None:
    truth, said = answers(200, 0.8)
    assert bootstrap_interval("mcc", truth, said) == bootstrap_interval("mcc", truth, said)
    assert bootstrap_interval("f1", truth, truth) == (1.0, 1.0)


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "f1"])
@pytest.mark.parametrize("labels", [2, 3])
def test_a_sample_is_the_metric_of_its_rows(metric: Metric, labels: int) -> None:
    truth, said = answers(300, 0.7, labels)
    generator = np.random.default_rng(0)
    for value in resampled_metrics(metric, truth, said, labels)[:20]:
        rows = generator.integers(300, size=300)
        theirs = metric_value(metric, truth[rows], said[rows], classes=labels)
        assert value == pytest.approx(theirs)


def test_a_rare_class_that_a_sample_lacks_is_no_mistake() -> None:
    """Five rows of class 2: one sample in 150 has none of them."""
    truth = np.repeat([0, 1, 2], [150, 145, FEWEST])
    assert bootstrap_interval("f1", truth, truth, 3) == (1.0, 1.0)


def test_classes_of_fewer_rows_than_a_bootstrap_can_tell_make_macro_f1_unsure() -> None:
    """Of 20 classes 8 have 2 or 3 rows. The F1 of all rows is known, as those are many."""
    generator = np.random.default_rng(0)
    shares = np.repeat([0.08, 0.005], [12, 8])
    right = generator.uniform(0.4, 0.95, 20)

    def drawn(rows: int) -> tuple[Any, Any]:
        truth = generator.choice(20, rows, p=shares)
        other = generator.choice(20, rows, p=shares)
        return truth, np.where(generator.random(rows) < right[truth], truth, other)

    known = metric_value("macro_f1", *drawn(200_000), classes=20)
    plain, held = 0, 0
    for _ in range(40):
        rows = drawn(500)
        low, high = np.quantile(resampled_metrics("macro_f1", *rows, 20), [0.025, 0.975])
        plain += low <= known <= high
        low, high = bootstrap_interval("macro_f1", *rows, 20)
        held += 0 <= low <= known <= high <= 1
    assert plain < 36 <= held
    truth = np.stack([np.arange(60) < 30, np.arange(60) < FEWEST - 1], 1).astype(np.int8)
    low, high = bootstrap_interval("macro_f1", truth, truth)
    assert low == pytest.approx(1 - 1.96 * (1 / 12) ** 0.5 / 2, abs=1e-3)
    assert high == 1
    assert bootstrap_interval("micro_f1", truth, truth) == (1, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("metric", ["mcc", "f1"])
@pytest.mark.parametrize("labels", [2, 3])
def test_a_sample_of_one_label_or_one_answer_has_the_metric_of_its_rows(
    metric: Metric, labels: int
) -> None:
    truth = np.repeat([0, labels - 1], [28, 2])
    said = np.repeat([0, labels - 1, 0], [1, 1, 28])
    generator = np.random.default_rng(0)
    draws = [generator.integers(30, size=30) for _ in range(500)]
    assert any(np.ptp(truth[rows]) == 0 for rows in draws), "else it would test nothing"
    theirs = [metric_value(metric, truth[rows], said[rows], classes=labels) for rows in draws]
    assert resampled_metrics(metric, truth, said, labels) == pytest.approx(theirs)


def test_models_of_one_split_meet_the_same_samples() -> None:
    """Two models that are right in the same rows, and wrong in other ways, are equally sure."""
    truth, said = answers(300, 0.7, 3)
    otherwise = np.where(said == truth, truth, 3 - truth - said)
    assert (otherwise != said).sum() == (said != truth).sum() > 50
    one, other = (bootstrap_interval("accuracy", truth, model) for model in (said, otherwise))
    assert one == other


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc", "pearson_spearman"])
def test_models_together_get_what_each_gets_alone(
    metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory holds two of five at once, and where one never names a class."""
    truth, said = answers(60, 0.7, 3)
    models = [*(np.roll(said, places) for places in range(4)), np.zeros_like(truth)]
    alone = [resampled_metrics(metric, truth, said, 3) for said in models]
    monkeypatch.setattr(bootstrap, "_COLUMNS", 2 * len(truth))
    np.testing.assert_array_equal(resampled_together(metric, truth, models, 3), alone)


@pytest.mark.parametrize("rows", [3, 200])
def test_a_correlation_is_that_of_scipy_on_the_rows_of_its_sample(rows: int) -> None:
    generator = np.random.default_rng(1)
    truth = np.round(generator.random(rows) * 5).astype(np.float32)  # with ties
    said = (truth + generator.normal(size=rows)).astype(np.float32)
    samples = resampled_metrics("pearson_spearman", truth, said)
    generator = np.random.default_rng(0)
    for value in samples[:30]:
        drawn = generator.integers(rows, size=rows)
        pair = truth[drawn], said[drawn]
        defined = all(np.ptp(side) for side in pair)
        theirs = (pearsonr(*pair)[0] + spearmanr(*pair)[0]) / 2 if defined else 0.0
        assert value == pytest.approx(theirs, abs=1e-6)

"""Thresholds of several labels against all that there are."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.measures.thresholds import (
    FEWEST,
    as_probabilities,
    chosen,
    cross_fitted,
    decided,
    from_probabilities,
)
from objectives.metric import metric_value

ROWS = 30


def drawn(seed: int, labels: int = 2, share: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = (generator.random((ROWS, labels)) < share).astype(np.int8)
    logits = truth + generator.normal(-1, 1, truth.shape)
    return truth, logits.astype(np.float32)


@pytest.mark.parametrize(
    ("metric", "seeds"),
    [
        ("macro_f1", [0]),
        ("micro_f1", [0]),
        pytest.param("macro_f1", [1, 2], marks=pytest.mark.slow),
        pytest.param("micro_f1", [1, 2], marks=pytest.mark.slow),
    ],
)
def test_no_other_cuts_are_better(metric: str, seeds: list[int]) -> None:
    for seed in seeds:
        truth, logits = drawn(seed, share=0.5)
        assert (truth.sum(0) >= FEWEST).all()
        cuts = [np.r_[own - 1e-3, 9] for own in logits.T]
        most = max(
            metric_value(metric, truth, (logits > np.array(pair)).astype(np.int8))
            for pair in product(*cuts)
        )
        found = chosen(metric, truth, logits)
        assert metric_value(metric, truth, (logits > found).astype(np.int8)) == pytest.approx(most)
        assert most > metric_value(metric, truth, (logits > 0).astype(np.int8))


@given(st.integers(0, 1000), st.sampled_from(["macro_f1", "micro_f1"]))
def test_chosen_ones_lose_nothing_and_rare_labels_have_none(seed: int, metric: str) -> None:
    truth, logits = drawn(seed, 3, 0.3)
    truth[:, 0] = np.arange(ROWS) < FEWEST - 1
    found = chosen(metric, truth, logits.round(1))
    assert found[0] == 0
    half, own = (
        metric_value(metric, truth, (logits.round(1) > t).astype(np.int8)) for t in (0, found)
    )
    assert own >= half - 1e-12


def test_labels_that_are_told_by_themselves_stay_at_a_half_and_are_carried_as_probabilities() -> (
    None
):
    truth, _ = drawn(0)
    assert not chosen("macro_f1", truth, (8 * truth - 4).astype(np.float32)).any()
    thresholds = np.array([-3.0, 0.0, 14.0])
    shares = as_probabilities(thresholds)
    assert shares[1] == 0.5
    assert from_probabilities(shares) == pytest.approx(thresholds, abs=1e-6)
    assert from_probabilities(None) is None


def test_no_selection_row_is_judged_by_a_threshold_that_it_helped_to_choose() -> None:
    truth, logits = drawn(1)
    before = cross_fitted("macro_f1", truth, logits)
    for row in range(5):
        turned = truth.copy()
        turned[row] = 1 - turned[row]
        after = cross_fitted("macro_f1", turned, logits)
        same = np.arange(ROWS) % 5 == row % 5
        assert np.array_equal(before[same], after[same])
    noise = np.random.default_rng(0).normal(-1, 1, (400, 20)).astype(np.float32)
    labels = (np.random.default_rng(1).random(noise.shape) < 0.1).astype(np.int8)
    judged, found = decided("macro_f1", labels, {"select": noise, "heldout": noise})
    chance, flattered = (
        metric_value("macro_f1", labels, (judged[role] > 0).astype(np.int8))
        for role in ("select", "heldout")
    )
    assert flattered > chance + 0.02  # on the very rows that chose
    assert (judged["heldout"] == (noise - found).astype(np.float32)).all()

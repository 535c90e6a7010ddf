"""How much better the chosen model looks than it is."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.measures.bootstrap import Floats
from reports.recommended import cheapest_within, optimism

ROWS, LEVEL, LOSS = 500, 0.87, 0.01


def test_the_cheapest_that_is_surely_within_the_margin_comes_before_one_that_seems_so() -> None:
    lost = [0.03, 0.01, 0.008, 0.0]
    for most, taken in (
        ([0.05, 0.02, 0.015, 0.009], (3, True)),
        ([0.05, 0.02, 0.015, 0.012], (1, False)),
        ([None] * 4, (1, False)),
    ):
        assert cheapest_within(lost, most.__getitem__, 0.01) == taken
    assert cheapest_within(lost, lost.__getitem__, -0.01) is None


def planted(seed: int, losses: Floats) -> tuple[float, float] | None:
    """How far the metric of the model that is taken, and its expected one, lie above the truth.
    Models lose so much of the unpruned one's accuracy on all rows, and differ from it on 8%."""
    generator = np.random.default_rng(seed)
    unpruned = generator.random(ROWS) < LEVEL
    differs = generator.random((len(losses), ROWS)) < 0.08
    redrawn = generator.random((len(losses), ROWS)) < LEVEL - losses[:, None] / 0.08
    right = np.vstack([np.where(differs, redrawn, unpruned), unpruned]).astype(float)
    counts = generator.multinomial(ROWS, np.full(ROWS, 1 / ROWS), size=100)
    samples, metrics = right @ counts.T / ROWS, right.mean(1)
    lost = metrics[-1] - metrics[:-1]
    wider = 1.96 * np.std(samples[-1] - samples[:-1], axis=1)
    cheaper = np.maximum.accumulate(np.concatenate([[-1], metrics[:-2]]))
    front = np.flatnonzero(metrics[:-1] > cheaper)
    most = (lost + wider)[front]
    found = cheapest_within(lost[front].tolist(), most.__getitem__, LOSS * metrics[-1])
    if found is None:
        return None
    taken = front[found[0]]
    lucky = optimism(metrics[:-1], samples[:-1], samples[-1], wider, LOSS)
    too_high = metrics[taken] - (LEVEL - losses[taken])
    return too_high, too_high - lucky


@pytest.mark.parametrize("losses", [np.full(20, 0.004), np.linspace(0.03, 0, 16)])
def test_the_chosen_model_looks_too_good_and_its_expected_metric_does_not(losses: Floats) -> None:
    """Of many equal models, and of a front."""
    found = [one for seed in range(80) if (one := planted(seed, losses)) is not None]
    too_high, expected_too_high = np.mean(found, axis=0)
    assert too_high > 0.006
    assert abs(expected_too_high) < 0.0035


def test_where_the_choice_is_plain_nothing_is_corrected() -> None:
    """One model, and models far apart."""
    generator = np.random.default_rng(0)
    for metrics in (np.array([0.9]), np.array([0.5, 0.7, 0.9])):
        samples = metrics[:, None] + generator.normal(0, 0.01, (len(metrics), 500))
        samples -= samples.mean(1, keepdims=True) - metrics[:, None]
        unpruned, wider = samples[-1], np.zeros(len(metrics))
        assert optimism(metrics, samples, unpruned, wider, 0.01) == pytest.approx(0, abs=1e-12)
        assert optimism(metrics, samples, unpruned + 0.5, wider, 0.01) == 0

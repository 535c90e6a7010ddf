"""A power law through a curve: where it leads, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.errors import UserError
from objectives.strategies.places import learning_curves
from objectives.strategies.places.learning_curves import extrapolated, goes_on

STEPS = np.arange(1, 13) * 10.0


def power(limit: float, a: float, c: float, steps: np.ndarray) -> np.ndarray:
    return limit - a * (steps / 10) ** -c


@pytest.mark.parametrize(("limit", "a", "c"), [(0.9, 0.4, 0.5), (-0.02, 0.5, 1.0), (70, 30, 0.2)])
def test_a_power_law_is_continued(limit: float, a: float, c: float) -> None:
    """c is among the exponents; the rise from the last point to step 500 is to be foreseen."""
    curve = power(limit, a, c, STEPS)
    there = float(power(limit, a, c, np.array([500.0]))[0])
    found = extrapolated(STEPS.tolist(), curve.tolist(), 500)
    assert found.chances.sum() == pytest.approx(1)
    assert abs(found.mean - there) < 0.15 * (there - curve[-1])
    assert abs(found.mean - there) < 2 * found.std


def test_chances_are_those_of_samples_of_the_mixture() -> None:
    curve = power(0.9, 0.4, 0.5, STEPS) + 0.01 * np.random.default_rng(0).standard_normal(12)
    found = extrapolated(STEPS.tolist(), curve.tolist(), 500)
    generator = np.random.default_rng(1)
    which = generator.choice(len(found.chances), 200_000, p=found.chances)
    draws = found.means[which] + found.scales[which] * generator.standard_t(found.freedom, 200_000)
    assert found.mean == pytest.approx(draws.mean(), abs=3e-4)
    assert found.std == pytest.approx(draws.std(), rel=0.05)
    for score in (found.mean - found.std, found.mean, found.mean + found.std):
        assert found.chance_above(score) == pytest.approx((draws > score).mean(), abs=0.01)


def test_chances_of_the_exponents_are_those_of_the_integral() -> None:
    """Likelihood times priors, summed over a grid of start, rise and variance of the noise."""
    steps, y = np.array([1.0, 10.0, 20.0, 40.0]), np.array([0.0, 0.8, 0.7, 1.0])
    found = extrapolated(steps.tolist(), y.tolist(), 50)
    start, rise, log_variance = np.meshgrid(
        np.linspace(-1.5, 1.5, 121), np.linspace(-1, 3, 161), np.linspace(-10, 2, 60), indexing="ij"
    )
    variance = np.exp(log_variance)
    prior = np.exp(-1e-3 / variance) / variance  # inverse gamma (1, 0.001), times the variance
    evidence = []
    for exponent in learning_curves._EXPONENTS:
        powers = 1 - steps**-exponent
        errors = sum(
            (score - start - rise * power / powers[-1]) ** 2
            for score, power in zip(y, powers, strict=True)
        )
        evidence.append((np.exp(-errors / 2 / variance) / variance**2 * prior).sum())
    assert found.chances == pytest.approx(np.array(evidence) / sum(evidence), abs=1e-3)


def test_it_is_as_sure_as_it_should_be() -> None:
    """The truth lies in the middle 80% of the prediction about so often; 300 noisy curves."""
    generator, inside = np.random.default_rng(0), []
    for _ in range(300):
        limit, a, c = generator.uniform((0.6, 0.1, 0.3), (0.95, 0.5, 1.5))
        steps = np.append(STEPS, 500.0)
        curve = power(limit, a, c, steps) + 0.01 * generator.standard_normal(13)
        found = extrapolated(STEPS.tolist(), curve[:-1].tolist(), 500)
        inside.append(0.1 < found.chance_above(curve[-1]) < 0.9)
    assert 0.7 < np.mean(inside) < 0.9


def test_more_points_and_nearer_ends_make_it_surer() -> None:
    curve = power(0.9, 0.4, 0.5, STEPS) + 0.01 * np.random.default_rng(2).standard_normal(12)
    of_four = extrapolated(STEPS[:4].tolist(), curve[:4].tolist(), 500)
    of_all = extrapolated(STEPS.tolist(), curve.tolist(), 500)
    near = extrapolated(STEPS.tolist(), curve.tolist(), 130)
    assert near.std < of_all.std < of_four.std


@pytest.mark.parametrize("factor", [1e-3, 100.0])
def test_another_unit_of_scores_or_steps_changes_nothing(factor: float) -> None:
    curve = power(0.9, 0.4, 0.5, STEPS) + 0.01 * np.random.default_rng(2).standard_normal(12)
    plain = extrapolated(STEPS.tolist(), curve.tolist(), 500)
    scaled = extrapolated((factor * STEPS).tolist(), (factor * curve - 3).tolist(), factor * 500)
    assert scaled.mean == pytest.approx(factor * plain.mean - 3)
    assert scaled.std == pytest.approx(factor * plain.std)


def test_a_flat_curve_stays_flat() -> None:
    found = extrapolated([1, 2, 3, 4], [0.5] * 4, 100)
    assert found.mean == pytest.approx(0.5, abs=1e-6)
    assert 0 < found.std < 0.5


def test_what_cannot_win_is_stopped_and_what_is_too_short_goes_on() -> None:
    steps = STEPS.tolist()
    assert not goes_on(steps, power(0.6, 0.4, 1.0, STEPS).tolist(), 500, best=0.9)
    assert goes_on(steps, power(0.95, 0.4, 1.0, STEPS).tolist(), 500, best=0.9)
    assert goes_on(steps[:2], [0.0, 0.1], 500, best=0.9)


def test_most_of_the_training_is_saved_and_the_best_curve_is_kept() -> None:
    """30 curves a seed, one after the other, at 120 steps each; best so far stops the others."""
    kept, shares = [], []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        laws = generator.uniform((0.5, 0.2, 0.4), (0.95, 0.5, 1.2), (30, 3))
        curves = [power(*law, STEPS) + 0.003 * generator.standard_normal(12) for law in laws]
        best, points = curves[0][-1], 12
        for curve in curves[1:]:
            steps, scores = STEPS.tolist(), curve.tolist()
            stops = 3
            while stops < 12 and goes_on(steps[:stops], scores[:stops], 120, best):
                stops += 1
            points += stops
            best = max(best, curve[-1]) if stops == 12 else best
        kept.append(best == max(curve[-1] for curve in curves))
        shares.append(points / (30 * 12))
    assert np.mean(kept) >= 0.75
    assert np.mean(shares) < 0.7


@pytest.mark.parametrize("steps", [[1, 2], [0, 1, 2]])
def test_too_little_to_go_by_is_refused(steps: list[float]) -> None:
    with pytest.raises(UserError, match="give at least 3 points, and steps > 0"):
        extrapolated(steps, [0.1] * len(steps), 10)

"""Who is trained for how long, from fitness that is scripted."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.errors import UserError
from objectives.strategies.places.hurdles import Hurdles, HurdleSettings, Judged


class Scripted:
    """A candidate with its fitness after each increment; counts the steps it was trained for."""

    def __init__(self, *fitness: float):
        self._fitness, self.steps = list(fitness), 0

    def __call__(self, steps: int) -> float:
        self.steps += steps
        return self._fitness.pop(0)


def dynamic(**settings: int) -> Hurdles:
    return Hurdles(HurdleSettings(increments=(10, 20, 40), **{"every": 2, **settings}))


def test_dynamic_hurdles_act_on_later_candidates() -> None:
    hurdles = dynamic()
    first = [Scripted(1.0), Scripted(3.0)]
    assert hurdles.judge(first) == [
        Judged(fitness=1.0, increments=1),
        Judged(fitness=3.0, increments=1),
    ]
    assert hurdles.heights == [2.0]  # the mean of 1 and 3

    second = [Scripted(1.5), Scripted(2.5, 4.0)]
    assert hurdles.judge(second) == [
        Judged(fitness=1.5, increments=1),
        Judged(fitness=4.0, increments=2),
    ]
    assert hurdles.heights == [2.0, 4.0]  # only one was trained for two increments

    third = [Scripted(2.1, 3.9), Scripted(2.1, 4.1, 9.0), Scripted(1.9)]
    assert [one.increments for one in hurdles.judge(third)] == [2, 3, 1]
    assert hurdles.heights == [2.0, 4.0]  # there is no fourth increment to guard
    assert [one.steps for one in (*first, *second, *third)] == [10, 10, 10, 30, 30, 70, 10]


def test_a_hurdle_is_the_mean_of_those_in_the_population_alone() -> None:
    hurdles = dynamic(every=3, population=2)
    hurdles.judge([Scripted(100.0), Scripted(1.0), Scripted(2.0)])
    assert hurdles.heights == [1.5]


def test_a_hurdle_waits_for_the_first_that_comes_so_far() -> None:
    hurdles = dynamic()
    hurdles.judge([Scripted(1.0), Scripted(3.0), Scripted(0.0), Scripted(0.5)])
    assert hurdles.heights == [2.0]
    hurdles.judge([Scripted(5.0, 6.0)])
    assert hurdles.heights == [2.0, 6.0]


@pytest.mark.parametrize("reading", ["dynamic", "static"])
def test_candidates_that_are_all_alike_are_all_trained(reading: str) -> None:
    settings = HurdleSettings(increments=(1, 1), every=2, reading=reading)  # type: ignore[arg-type]
    judged = Hurdles(settings).judge([Scripted(0.3, 0.3) for _ in range(6)])
    assert [one.increments for one in judged][-4:] == [2] * 4


def test_static_hurdles_are_the_means_of_those_that_are_left() -> None:
    """1, 2, 3, 6 have the mean 3; then 5 and 7 have the mean 6."""
    hurdles = Hurdles(HurdleSettings(increments=(10, 20, 40), reading="static"))
    four = [Scripted(1.0), Scripted(2.0), Scripted(3.0, 5.0), Scripted(6.0, 7.0, 8.0)]
    judged = hurdles.judge(four)
    assert [(one.fitness, one.increments) for one in judged] == [(1, 1), (2, 1), (5, 2), (8, 3)]
    assert [one.steps for one in four] == [10, 10, 30, 70]
    assert hurdles.judge([]) == []


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match=r"HurdleSettings\.increments is \(10, 0\)"):
        HurdleSettings(increments=(10, 0))
    with pytest.raises(UserError, match=r"HurdleSettings\.every is 0"):
        HurdleSettings(increments=(10,), every=0)


class Curve:
    """a (1 - exp(-t / b))."""

    def __init__(self, a: float, b: float):
        self.a, self.b, self.steps = a, b, 0

    def __call__(self, steps: int) -> float:
        self.steps += steps
        return float(self.a * (1 - np.exp(-self.steps / self.b)))


@pytest.mark.parametrize("reading", ["dynamic", "static"])
def test_the_best_curve_is_found_with_fewer_steps_than_all_of_training(reading: str) -> None:
    """In at least nine of ten seeds, 60 curves each; the eight best are trained fully at the end,
    as in the paper. With b up to 20 instead of 12 the dynamic reading finds it in 81 of 100 seeds,
    the static one in 99: the first candidates, which meet no hurdle, are all judged by 20 steps.
    """
    increments = (20, 40, 60)
    settings = HurdleSettings(increments=increments, every=15, reading=reading)  # type: ignore[arg-type]
    found, shares = [], []
    for seed in range(50):
        generator = np.random.default_rng(seed)
        curves = [Curve(a, b) for a, b in generator.uniform((0, 5), (1, 12), (60, 2))]
        judged = Hurdles(settings).judge(curves)
        best = sorted(range(60), key=lambda index: -judged[index].fitness)[:8]
        fully = {index: curves[index](120 - curves[index].steps) for index in best}
        found.append(max(best, key=fully.__getitem__) == max(range(60), key=lambda i: curves[i].a))
        shares.append(sum(curve.steps for curve in curves) / (60 * 120))
    assert np.mean(found) >= 0.9
    assert max(shares) < 0.6

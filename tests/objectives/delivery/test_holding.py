"""Tests of a promise: right as often as they say, whenever the asking stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from objectives.delivery.checking import (
    change_of_scores,
    change_of_share,
    evidence,
    fewest_rows,
    more_rows,
    verdict,
)


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0.5, 0.99),
    below=st.floats(0, 1).map(lambda part: round(part, 9)),  # scipy overflows near 1e-308
    rows=st.integers(1, 200),
)
def test_wrong_evidence_is_worth_at_most_its_stake(share: float, below: float, rows: int) -> None:
    """A chance to double the stake 20 times is then at most one in 20."""
    agreed = np.arange(rows + 1)
    above_share, below_share = np.exp(evidence(agreed, rows, share))
    less, more = share * below, share + (1 - share) * below
    assert (binom.pmf(agreed, rows, less) * above_share).sum() <= 1 + 1e-6
    assert (binom.pmf(agreed, rows, more) * below_share).sum() <= 1 + 1e-6


def answers(rows: int, share: float, seed: int) -> list[bool]:
    return (np.random.default_rng(seed).random(rows) < share).tolist()


@pytest.mark.parametrize(("true", "mistake"), [(0.94, True), (0.96, False)])
def test_a_wrong_verdict_is_rare_though_each_is_looked_at(true: float, mistake: bool) -> None:
    wrong = sum(verdict(answers(600, true, seed), 0.95) is mistake for seed in range(200))
    assert wrong <= 10


def test_few_answers_tell_what_is_clear() -> None:
    assert verdict([], 0.95) is None
    assert verdict(10 * [True], 0.95) is None
    assert verdict(140 * [True], 0.95) is True
    assert verdict(5 * [False], 0.95) is False
    asked = [
        next(rows for rows in range(1, 400) if verdict(answers(rows, 0.8, seed), 0.95) is not None)
        for seed in range(5)
    ]
    assert np.median(asked) < 60


@settings(max_examples=30, deadline=None)
@given(asked=st.integers(20, 2000), agreed=st.floats(0.5, 1), share=st.floats(0.6, 0.99))
def test_as_many_more_rows_would_tell(asked: int, agreed: float, share: float) -> None:
    count = round(agreed * asked)
    more = more_rows(count, asked, share)
    if more is None:
        assert abs(count / asked - share) < 0.01
    else:
        rows = asked + more
        assert evidence(count / asked * rows, rows, share).max() >= np.log(20) - 1e-6


def test_two_shares_are_compared_exactly() -> None:
    found = change_of_share((1, 11), (9, 13))
    # Hypergeometric: (C(10,1) C(14,10) + C(10,0) C(14,11) + C(10,9) C(14,2)) / C(24,11)
    assert found.chance == pytest.approx((10 * 1001 + 364 + 10 * 91) / 2496144, rel=0.01)
    assert (found.expected, found.now) == (1 / 11, 9 / 13)
    assert not found.alarm
    assert change_of_share((10, 1000), (100, 1000)).alarm
    assert not change_of_share((0, 40), (0, 40)).alarm


def test_scores_of_one_source_raise_no_alarm_and_a_fifth_of_another_does() -> None:
    generator = np.random.default_rng(0)
    before, rows = generator.normal(size=2000), fewest_rows(2000)
    assert rows == 110
    assert not any(change_of_scores(before, generator.normal(size=300)).alarm for _ in range(100))
    others = np.concatenate([generator.normal(size=160), 4 + generator.normal(size=40)])
    found = change_of_scores(before, others)
    assert found.alarm
    assert found.now > found.expected == 0.5


def test_equal_scores_are_alike() -> None:
    assert change_of_scores(np.zeros(50), np.zeros(9)).now == 0.5


def test_rows_that_are_too_few_at_writing_can_show_no_change() -> None:
    assert fewest_rows(100) is None

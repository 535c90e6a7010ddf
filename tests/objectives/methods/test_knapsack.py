"""The 0/1 knapsack beside trying all choices."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.methods.binary_bert import best_within

things = st.lists(st.tuples(st.integers(-3, 20).map(float), st.integers(0, 30)), max_size=15)


@given(things=things, budget=st.integers(0, 200))
def test_no_choice_is_better(things: list[tuple[float, int]], budget: int) -> None:
    gains, costs = [gain for gain, _ in things], [cost for _, cost in things]
    taken = best_within(gains, costs, budget)
    assert list(taken) == sorted(set(taken))
    assert sum(costs[thing] for thing in taken) <= budget
    best = max(
        sum(gains[thing] for thing in choice)
        for size in range(len(things) + 1)
        for choice in combinations(range(len(things)), size)
        if sum(costs[thing] for thing in choice) <= budget
    )
    assert sum(gains[thing] for thing in taken) == best


@given(things=things, budgets=st.tuples(st.integers(0, 200), st.integers(0, 200)))
def test_more_to_spend_never_gains_less(
    things: list[tuple[float, int]], budgets: tuple[int, int]
) -> None:
    gains, costs = [gain for gain, _ in things], [cost for _, cost in things]
    gained = [
        sum(gains[thing] for thing in best_within(gains, costs, budget))
        for budget in sorted(budgets)
    ]
    assert gained[0] <= gained[1]


@pytest.mark.parametrize("budget", [-1, 0, 4.5])
def test_what_cannot_be_paid_or_gains_nothing_is_left(budget: float) -> None:
    assert best_within([3.0, -1.0, 0.0], [5, 0, 0], budget) == ()
    assert best_within([], [], budget) == ()

"""The models to look at first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runs.results import Measured
from reports.pareto import pareto_view
from reports.recommended import knee, recommendations


def test_each_question_has_its_model_and_a_model_stands_there_once(
    make_run: Any, make_trial: Any
) -> None:
    """The unpruned metric is 0.9: 1% below it is 0.891, 3% below it 0.873."""
    rows = [(100_000, 0.5), (300_000, 0.86), (400_000, 0.875), (700_000, 0.89), (900_000, 0.895)]
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    found = [(row.reasons, row.trial.number) for row in recommendations(pareto_view(run))]
    assert found == [
        (("recommended", "cheapest within 3%"), 2),
        (("cheapest within 1%",), 4),
        (("knee",), 1),
    ]
    good = make_run([make_trial(0, 300_000, 0.9)])
    assert [row.reasons for row in recommendations(pareto_view(good))] == [
        ("recommended", "cheapest within 1%", "cheapest within 3%")
    ]
    assert recommendations(pareto_view(make_run())) == []


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=8),
    scale=st.sampled_from([0.5, 2.0, 64.0]),
)
def test_the_knee_is_the_point_furthest_above_the_chord_on_any_scale(
    steps: list[tuple[int, int]], scale: float, make_trial: Any
) -> None:
    """Against the distance as geometry has it, by cross products."""
    cost, metric, front = 0, 0, []
    for number, (dearer, better) in enumerate(steps):
        cost, metric = cost + dearer, metric + better
        front.append(make_trial(number, cost, metric / 1024).result)
    place = knee(front)
    scaled = [replace(r, cost=r.cost * scale, metric=r.metric * scale) for r in front]
    assert knee(scaled) == place
    if len(front) < 3:
        assert place is None
        return
    first, last = front[0], front[-1]

    def along(result: Measured) -> float:
        """Wide costs by their logarithms."""
        return math.log(result.cost) if last.cost > 10 * first.cost else result.cost

    above = [
        (along(last) - along(first)) * (r.metric - first.metric)
        - (last.metric - first.metric) * (along(r) - along(first))
        for r in front
    ]
    if place is None:
        assert max(above) <= 1e-9
    else:
        assert above[place] >= max(above) - 1e-9
        assert above[place] > 0


def test_where_costs_are_wide_the_knee_is_on_their_logarithms(make_trial: Any) -> None:
    """The second is the best buy in times, the third in sums."""
    costs = (1_000, 2_000, 50_000, 100_000)
    metrics = (0.5, 0.65, 0.95, 1.0)
    for shift, bend in ((0, 1), (100_000, 2)):
        rows = zip(costs, metrics, strict=True)
        front = [make_trial(n, shift + cost, metric) for n, (cost, metric) in enumerate(rows)]
        assert knee([trial.result for trial in front]) == bend

"""The models to look at first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reports.pareto import pareto_view
from reports.recommended import knee, recommendations


def test_each_question_has_its_model_and_a_model_stands_there_once(
    make_run: Any, make_trial: Any
) -> None:
    """The unpruned metric is 0.9: 1% below it is 0.891, 3% below it 0.873."""
    rows = [(100_000, 0.5), (300_000, 0.86), (400_000, 0.875), (700_000, 0.89), (900_000, 0.895)]
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    found = [(row.reasons, row.point.trial) for row in recommendations(pareto_view(run))]
    assert found == [
        (("cheapest within 1%",), 4),
        (("cheapest within 3%",), 2),
        (("knee",), 1),
    ]
    good = make_run([make_trial(0, 300_000, 0.9)])
    assert [row.reasons for row in recommendations(pareto_view(good))] == [
        ("cheapest within 1%", "cheapest within 3%")
    ]
    assert recommendations(pareto_view(make_run())) == []


@given(rows=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=8))
def test_the_knee_is_the_point_furthest_from_the_chord(
    rows: list[tuple[int, int]], make_run: Any, make_trial: Any
) -> None:
    """Against the distance as geometry has it, by cross products."""
    run = make_run([make_trial(n, x * 30_000, y / 40) for n, (x, y) in enumerate(rows)])
    front = pareto_view(run).front
    found = knee(front)
    if len(front) < 3:
        assert found is None
        return
    (x0, y0), *inner, (x1, y1) = ((p.result.ratio, p.result.metric) for p in front)
    above = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in inner]
    if found is None:
        assert max(above) <= 1e-9
    else:
        place = [point.trial for point in front[1:-1]].index(found.trial)
        assert above[place] >= max(above) - 1e-9
        assert above[place] > 0

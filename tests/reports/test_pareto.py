"""The front's laws, its view, its sentence and its figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runs.records import RunRecord, TrialRecord, pareto_front
from orchestrator.runs.results import TrialResult
from reports.figures.front import front_figure
from reports.overlay import overlay
from reports.pareto import knob_texts, pareto_view
from reports.recommended import answer, recommendations
from tests.reports.conftest import missing_an_aim

ROWS = st.lists(
    # Few values, so that ties of metric, of FLOPs and of both are common.
    st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()),
    max_size=12,
)


def at_least_as_good(one: TrialResult, other: TrialResult) -> bool:
    return one.metric >= other.metric and one.cost <= other.cost


def feasible_results(trials: list[TrialRecord]) -> list[TrialResult]:
    return [trial.result for trial in trials if trial.result is not None and trial.feasible]


@given(rows=ROWS)
def test_front_laws(rows: list[tuple[int, int, bool]], make_trial: Any) -> None:
    trials = [
        make_trial(number, flops * 100_000, metric / 10, target=None if inside else 0.99)
        for number, (flops, metric, inside) in enumerate(rows)
    ]
    front = feasible_results(pareto_front(trials))
    for one in front:
        assert not any(at_least_as_good(other, one) for other in front if other is not one)
    for result in feasible_results(trials):
        assert any(at_least_as_good(one, result) for one in front)
    assert len(front) == len(pareto_front(trials)), (
        "a trial outside its budget or aims is on the front"
    )
    assert [one.cost for one in front] == sorted(one.cost for one in front)


def test_view_sorts_the_finished_trials(mixed_run: RunRecord) -> None:
    view = pareto_view(mixed_run)
    assert [trial.number for trial in view.front] == [1, 0]
    assert [trial.number for trial in view.dominated] == [2]
    assert [trial.number for trial in view.outside] == [3]
    assert view.front[0].result.ratio == 0.4


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        # Of the unpruned 0.9 and, held out, 0.88; the held-out metric is the other less 0.01.
        (
            [(300_000, 0.7), (490_000, 0.875), (510_000, 0.9)],
            "Take trial 1: at 49% of the FLOPs it keeps 98.3% of its accuracy held out "
            "(selection split: 97.2%).",
        ),
        ([(30_000, 0.8), (50_000, 0.895), (300_000, 0.9)], "Take trial 1: at 5.0% of the FLOPs it"),
        ([(300_000, 0.7), (510_000, 0.875), (720_000, 0.9)], "Take trial 2: at 72% of the FLOPs"),
        (
            [(300_000, 0.4), (720_000, 0.81)],
            "No model loses at most 3%; trial 1, at 72% of the FLOPs, keeps 90.9% of its",
        ),
    ],
)
def test_the_cheapest_that_loses_little_is_recommended_if_it_saves_half(
    make_run: Any, make_trial: Any, rows: list[tuple[int, float]], sentence: str
) -> None:
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    assert answer(pareto_view(run)).startswith(sentence)


def test_wide_costs_stand_on_a_logarithmic_axis(make_run: Any, make_trial: Any) -> None:
    near = make_run([make_trial(0, 300_000, 0.8), make_trial(1, 110_000, 0.7)])
    axis = front_figure(overlay(near)).layout.xaxis
    assert (axis.type, axis.tickformat, axis.range) == (None, ".0%", (0, pytest.approx(1.05)))
    wide = make_run([make_trial(n, 2**n * 20_000, 0.7 + 0.01 * n) for n in range(4)])
    figure = front_figure(overlay(wide))
    axis = figure.layout.xaxis
    assert (axis.type, axis.tickformat) == ("log", "~%")
    assert 10 ** axis.range[0] < 0.02 < 1 < 10 ** axis.range[1]
    named = {note.text: note.x for note in figure.layout.annotations if note.showarrow}
    bends = {row.reasons[0]: row.trial for row in recommendations(pareto_view(wide))}
    assert named == {
        text: pytest.approx(math.log10(trial.result.ratio)) for text, trial in bends.items()
    }


def test_few_bits_are_marks_of_their_own(make_run: Any, make_trial: Any) -> None:
    plain = [make_trial(n, flops, metric) for n, (flops, metric) in enumerate([(9, 0.9), (5, 0.8)])]
    assert not any("weights" in trace.name for trace in front_figure(overlay(make_run(plain))).data)

    mixed = [
        make_trial(2, 3, 0.7, widths={"weight_bits": (32, 4)}),
        make_trial(3, 4, 0.75, widths={"weight_bits": (8, 8)}),
    ]
    figure = front_figure(overlay(make_run([*plain, *mixed])))
    traces = {trace.name: trace for trace in figure.data}
    numbers = (number for _, number in traces["front"].customdata)
    marks = dict(zip(numbers, traces["front"].marker.symbol, strict=True))
    assert marks[0] == marks[1] == traces["float32 weights"].marker.symbol
    assert marks[2] == traces["4-bit weights"].marker.symbol
    assert marks[3] == traces["8-bit weights"].marker.symbol
    assert len(set(marks.values())) == 3


def test_answer_without_a_front(make_run: Any, make_trial: Any) -> None:
    large = make_run([make_trial(0, 720_000, 0.81), make_trial(1, 900_000, 0.9)])
    missed = make_run([make_trial(0, 720_000, 0.81, target=0.3)])
    assert answer(pareto_view(missed)) == (
        "No trial has met its FLOPs budget yet; 1 finished outside it."
    )
    [*trials] = map(missing_an_aim, large.trials)
    assert answer(pareto_view(make_run([*trials, missed.trials[0]]))) == (
        "No trial has met all aims yet; 2 finished inside their FLOPs budget."
    )
    assert answer(pareto_view(make_run())) == "No trial has finished yet."


@pytest.mark.parametrize(
    ("changes", "flops", "other"),
    [
        ({}, "the FLOPs", "the unpruned one"),
        (
            {"student_is_new": True, "cost": 10**7, "flops": 10**7},
            "the unpruned student's FLOPs",
            "the teacher",
        ),
    ],
)
def test_answer_gives_no_share_of_a_metric_that_is_not_positive(
    make_run: Any, make_trial: Any, changes: dict[str, Any], flops: str, other: str
) -> None:
    run = make_run([make_trial(0, 500_000, 0.2)], metric_name="mcc")
    run = replace(run, unpruned=replace(run.unpruned, heldout_metric=-0.05, **changes))
    assert answer(pareto_view(run)) == (
        f"No model loses at most 3%; trial 0, at 50% of {flops}, has mcc 0.190 held out where "
        f"{other} has -0.050 (selection split: 0.200 and 0.900)."
    )


def test_knobs_are_short() -> None:
    assert knob_texts({"a": 1 / 3, "b": 2, "c": "soft"}) == ["a = 0.3333", "b = 2", "c = soft"]


def test_figure_shows_each_kind_by_shape_and_colour(mixed_run: RunRecord) -> None:
    figure = front_figure(overlay([mixed_run]))
    traces = {trace.name: trace for trace in figure.data}
    assert list(traces["front"].x) == [0.4, 0.7]
    assert list(traces["front"].y) == [0.81, 0.89]
    assert traces["front"].line.shape == "hv"
    assert list(traces["dominated"].x) == [0.5]
    assert list(traces["outside its budget or aims"].x) == [0.3]
    assert list(traces["held out"].y) == [0.8, 0.88, 0.88]
    assert (list(traces["unpruned model"].x), list(traces["unpruned model"].y)) == ([1.0], [0.9])
    assert [line.y0 for line in figure.layout.shapes] == [0.9]
    for looks in ("symbol", "color"):
        assert len({trace.marker[looks] for trace in figure.data}) == 5


def test_words_alone_are_a_dotted_line(words_run: RunRecord, mixed_run: RunRecord) -> None:
    figure = front_figure(overlay([words_run]))
    assert {line.line.dash: line.y0 for line in figure.layout.shapes} == {"dash": 0.9, "dot": 0.85}
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert "words alone (tf-idf): 0.850 (held out 0.840)" in texts
    far = replace(words_run.unpruned, objective="divergence", divergence=0.0)
    assert not front_figure(overlay([replace(words_run, trials=(), unpruned=far)])).layout.shapes

    assert words_run.words is not None
    other = replace(words_run, name="other", words=replace(words_run.words, metric=0.8))
    figure = front_figure(overlay([words_run, other, mixed_run]))
    lines = [(line.line.dash, line.y0) for line in figure.layout.shapes]
    assert lines == [("dash", 0.9), ("dot", 0.85), ("dot", 0.8)], "runs with the same share one"
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert "other: words alone (tf-idf): 0.800 (held out 0.840)" in texts


def test_a_teacher_far_beyond_the_student_is_a_line_and_no_point(mixed_run: RunRecord) -> None:
    sizes = dict.fromkeys(("cost", "flops"), 18_000_000)
    large = replace(mixed_run.unpruned, student_is_new=True, **sizes)
    run = replace(mixed_run, unpruned=large)
    view = pareto_view(run)
    figure = front_figure(overlay([run]))
    assert max(x for trace in figure.data for x in trace.x) == 0.7
    assert "unpruned model" not in {trace.name for trace in figure.data}
    assert [line.y0 for line in figure.layout.shapes] == [0.9]
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert "teacher: 0.900 (held out 0.880), 18.0 x the FLOPs" in texts
    assert figure.layout.xaxis.title.text == "FLOPs, unpruned student = 100% (flops@16)"
    assert answer(view) == (
        "Take trial 0: at 70% of the unpruned student's FLOPs it keeps 100.0% of the teacher's "
        "accuracy held out (selection split: 98.9%)."
    )


def test_a_teacher_beyond_the_student_before_any_trial(make_run: Any) -> None:
    run = make_run()
    unpruned = replace(run.unpruned, student_is_new=True, cost=10**8, flops=10**8)
    figure = front_figure(overlay([replace(run, unpruned=unpruned)]))
    assert len(figure.data) == 0
    assert [line.y0 for line in figure.layout.shapes] == [0.9]


def test_hover_says_what_a_point_is(mixed_run: RunRecord) -> None:
    figure = front_figure(overlay([mixed_run]))
    (front,) = (trace for trace in figure.data if trace.name == "front")
    assert front.hovertext[0].split("<br>") == [
        "trial 1",
        "accuracy 0.8100, held out 0.8000",
        "FLOPs ratio 0.4000, target 0.4000 ± 5%",
        "400,000 flops@16, 40,000 params, 200,000 bytes",
    ]


def test_a_point_knows_its_run_and_its_trial(mixed_run: RunRecord) -> None:
    figure = front_figure(overlay([mixed_run]))
    keys = {trace.name: list(trace.customdata) for trace in figure.data}
    assert keys["front"] == [[0, 1], [0, 0]]
    assert keys["dominated"] == [[0, 2]]
    assert keys["held out"] == [[0, 1], [0, 0], [0, None]]


def test_intervals_are_thin_lines_around_their_points(make_many: Any) -> None:
    run = make_many(20)
    figure = front_figure(overlay([run]))
    traces = {trace.name: trace for trace in figure.data}
    assert traces["front"].error_y.array == pytest.approx([0.02] * len(run.front))
    assert traces["held out"].error_y is not None
    assert traces["unpruned model"].error_y.array == pytest.approx([0.01])


def test_every_word_of_a_timed_run_is_of_its_time(timed_run: RunRecord) -> None:
    view = pareto_view(timed_run)
    assert answer(view) == (
        "Take trial 0: at 70% of the latency it keeps 100.0% of its accuracy held out "
        "(selection split: 98.9%)."
    )
    figure = front_figure(overlay([timed_run]))
    assert figure.layout.xaxis.title.text == ("latency, unpruned = 100% (ms@cpu-2threads-b1-s16)")
    (front,) = (trace for trace in figure.data if trace.name == "front")
    assert list(front.x) == [0.4, 0.7]
    assert front.hovertext[0].split("<br>")[2:4] == [
        "latency ratio 0.4000, target 0.4000 ± 5%",
        "5.000 ms@cpu-2threads-b1-s16, 400,000 flops@16, 40,000 params, 200,000 bytes",
    ]
    assert "FLOPs" not in str(figure)

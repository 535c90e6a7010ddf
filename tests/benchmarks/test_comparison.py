"""Methods side by side: numbers of runs made by hand, their table, their figure."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison import (
    Comparison,
    Kept,
    attainment,
    chosen,
    compare,
    comparison_figure,
    comparison_tables,
)
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from reports.figures.outer_loop import hypervolume
from tests.reports.conftest import START, MakeRun, MakeTrial, unfinished

RATIOS = (0.5, 0.25, 0.1)
Runs = dict[str, list[RunRecord]]


@pytest.fixture
def runs(make_run: MakeRun, make_trial: MakeTrial) -> Runs:
    """Two seeds of four methods; the metrics at half, at a quarter, and what is off the front."""

    def seeds(name: str, *metrics: tuple[float, float]) -> list[RunRecord]:
        return [
            make_run(
                [
                    make_trial(0, 501_000, half),
                    make_trial(1, 240_000, quarter),
                    make_trial(2, 250_000, quarter - 0.1),
                    make_trial(3, 90_000, 0.99, target=0.2),  # outside its budget
                ],
                folder=Path(name) / str(seed),
            )
            for seed, (half, quarter) in enumerate(metrics)
        ]

    return {
        "lots": seeds("lots", (0.80, 0.70), (0.82, 0.72)),
        "norms": seeds("norms", (0.84, 0.71), (0.84, 0.69)),
        "search": seeds("search", (0.86, 0.80), (0.88, 0.76)),
        "worse": seeds("worse", (0.60, 0.55), (0.60, 0.55)),
    }


def samples(model: Path, role: str) -> np.ndarray:
    """Each model its own number of the run and trial, spread by rows that all models share."""
    run, trial = model.parts[0], int(model.parts[3])
    worth = {"lots": 0.0, "norms": 0.1, "search": 0.3, "worse": -0.3}[run]
    rows = np.random.default_rng(4).normal(size=500)
    return worth + 0.01 * trial + 0.05 * rows + (0.5 if role == "heldout" else 0)


@pytest.fixture
def comparison(runs: Runs) -> Comparison:
    return compare(runs, baselines={"lots", "norms"}, samples=samples, ratios=RATIOS)


def kept(comparison: Comparison, name: str, ratio: float, role: str = "select") -> Kept:
    found = comparison.contestants[name].kept[role][ratio]
    assert isinstance(found, Kept)
    return found


def test_each_seed_gives_its_best_model_within_the_ratio(comparison: Comparison) -> None:
    assert kept(comparison, "search", 0.5).metrics == (0.86, 0.88)
    assert kept(comparison, "search", 0.25).metrics == (0.80, 0.76)
    assert kept(comparison, "search", 0.25, "heldout").metrics == pytest.approx((0.79, 0.75))
    assert all(row.kept["select"][0.1] is None for row in comparison.contestants.values())


def test_seconds_of_trials_that_died_do_not_count(make_run: MakeRun, make_trial: MakeTrial) -> None:
    """Not of one whose worker died: it was buried when somebody looked again."""
    times = [(0, 60), (60, 140), (140, 30_000), (30_000, 30_100)]
    first, second, lost, last = (
        make_trial(number, 500_000, 0.8, started=START + start, ended=START + end)
        for number, (start, end) in enumerate(times)
    )
    run = make_run([first, second, unfinished(lost, "failed"), last])
    found = compare({"only": [run]}, baselines=set(), samples=samples, ratios=RATIOS)
    assert found.contestants["only"].seconds == 80


def test_the_best_of_more_trials_is_not_compared(runs: Runs) -> None:
    short = replace(runs["norms"][1], trials=runs["norms"][1].trials[:3])
    with pytest.raises(RunError, match=r"'norms': \[4, 3\].*launch those that have fewer"):
        compare(
            {**runs, "norms": [runs["norms"][0], short]},
            baselines={"norms"},
            samples=samples,
            ratios=RATIOS,
        )


def test_the_best_baseline_is_that_of_each_ratio(comparison: Comparison) -> None:
    assert comparison.best_baseline == {0.5: "norms", 0.25: "lots", 0.1: None}
    assert kept(comparison, "norms", 0.5).gain is None
    assert kept(comparison, "lots", 0.5).gain is not None


def test_a_gain_is_the_difference_of_means_with_a_paired_interval(comparison: Comparison) -> None:
    """Rows and all are shared, so that the interval of a difference without spread is a point."""
    for role in ("select", "heldout"):
        gain = kept(comparison, "search", 0.5, role).gain
        assert gain is not None
        assert gain.mean == pytest.approx(0.87 - 0.84)
        assert (gain.low, gain.high) == pytest.approx((0.2, 0.2))


def test_an_interval_covers_the_seeds_too(runs: Runs) -> None:
    """Seeds that differ by 0.2 from each other: some draws take one of them twice."""

    def by_seed(model: Path, role: str) -> np.ndarray:
        return np.full(500, 0.1 + 0.2 * int(model.parts[1]) * (model.parts[0] == "search"))

    gain = kept(compare(runs, baselines={"norms"}, samples=by_seed), "search", 0.5).gain
    assert gain is not None
    assert (gain.low, gain.high) == pytest.approx((0.0, 0.2))


def test_the_area_on_the_selection_split_is_hypervolume(comparison: Comparison, runs: Runs) -> None:
    for name, row in comparison.contestants.items():
        volumes = [hypervolume(run).shares[-1] for run in runs[name]]
        assert row.areas["select"] == pytest.approx(volumes)
        assert row.areas["heldout"] != row.areas["select"]


def heldout_area(run: RunRecord) -> float:
    """As a comparison of this run alone has it."""
    found = compare({"only": [run]}, baselines=set(), samples=samples).contestants["only"]
    [area] = found.areas["heldout"]
    return area


def test_the_models_held_out_are_those_chosen(make_run: MakeRun, make_trial: MakeTrial) -> None:
    """The dear one looked better, and is worse: who chose it has it."""
    trials = [make_trial(number, 200_000 * (1 + number), 0.7 + 0.1 * number) for number in range(2)]
    worth = [
        replace(trial, result=replace(trial.result, heldout_metric=metric))
        for trial, metric in zip(trials, (0.84, 0.64), strict=True)
    ]
    run = make_run(worth)
    assert chosen("heldout", run) == [(0.2, 0.84), (0.4, 0.64)]
    assert run.unpruned.heldout_metric == 0.88
    assert heldout_area(run) == pytest.approx((0.4 * 0.2 + 0.2 * 0.6) / 0.44)
    wrong = replace(worth[0], result=replace(worth[0].result, heldout_metric=0.3))
    assert heldout_area(make_run([wrong, worth[1]])) == pytest.approx(0.2 * 0.6 / 0.44)
    assert heldout_area(make_run([])) == 0


@given(
    fronts=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4),
        min_size=1,
        max_size=5,
    ),
    level=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
)
def test_attainment_counts_the_runs_that_reach_a_point(
    fronts: list[list[tuple[float, float]]], level: float
) -> None:
    surface = attainment([rising(front) for front in fronts], level)
    assert surface == sorted(surface)
    for x, y in itertools.product(np.arange(-0.5, 6), repeat=2):
        runs = sum(any(r <= x and m >= y for r, m in front) for front in fronts)
        below = any(r <= x and m >= y for r, m in surface)
        assert below == (runs >= level * len(fronts))


def rising(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The best metric up to each ratio."""
    return [(x, max(metric for ratio, metric in points if ratio <= x)) for x, _ in sorted(points)]


def test_what_half_of_the_seeds_reach_may_fall() -> None:
    seeds = [[(0.1, 0.7), (0.5, 0.6)], [(0.2, 0.5), (0.5, 0.9)], [(0.3, 0.8)]]
    assert attainment(seeds, 0.5) == [(0.2, 0.5), (0.3, 0.7), (0.5, 0.8)]
    assert attainment(seeds[:2], 0.5) == [(0.1, 0.7), (0.5, 0.9)]


def test_ratio_errors_count_what_was_asked(comparison: Comparison) -> None:
    """Three of four on the spot, one at 0.09 in place of 0.2."""
    assert comparison.contestants["lots"].ratio_error == pytest.approx(0.55 / 4)


def test_runs_of_two_tasks_fidelities_or_unequal_seeds_are_refused(runs: Runs) -> None:
    other = [replace(run, definition={**run.definition, "task.data": "y"}) for run in runs["worse"]]
    with pytest.raises(RunError, match=r"task\.data y, 'lots/0' has None"):
        compare({**runs, "worse": other}, baselines={"lots"}, samples=samples)
    low = [
        replace(run, definition={**run.definition, "fidelity.data": "0.5"}) for run in runs["worse"]
    ]
    with pytest.raises(RunError, match=r"fidelity \{'data': '0\.5'\}, 'lots/0' has full"):
        compare({**runs, "worse": low}, baselines={"lots"}, samples=samples)
    assert compare({"worse": low}, baselines=set(), samples=samples).contestants
    with pytest.raises(RunError, match="different seeds"):
        compare({**runs, "worse": other[:1]}, baselines={"lots"}, samples=samples)


def test_the_tables_tell_all_and_the_best_first(comparison: Comparison) -> None:
    select, heldout = comparison_tables(comparison).split("accuracy on the held-out split")
    rows = [line.split(" | ")[0].strip("| ") for line in select.splitlines() if "|" in line][2:]
    assert rows == ["search", "norms (baseline)", "lots (baseline)", "worse"]
    assert "| 0.8700 [+0.2000, +0.2000] | 0.7800 [+0.3000, +0.3000] | - |" in select
    assert "| 0.8400 (best baseline) |" in select
    assert "13.75%" in select
    assert "(unpruned 0.8800, seeds: 2)" in heldout
    assert "| 0.8600 [" in heldout
    assert "| hypervolume (quartiles) |" in select
    assert "| area (quartiles) |" in heldout


def test_the_figure_has_a_line_a_method_and_split(comparison: Comparison, runs: Runs) -> None:
    figure = comparison_figure(runs, comparison)
    lines = [(trace.name, trace.xaxis) for trace in figure.data]
    assert lines == [(name, axis) for name in runs for axis in ("x", "x2")]
    search = next(trace for trace in figure.data if trace.name == "search")
    assert list(search.y) == pytest.approx([0.80, 0.88])  # half of two seeds is one of them
    assert list(search.x) == [0.24, 0.501]
    held = next(trace for trace in figure.data if (trace.name, trace.xaxis) == ("search", "x2"))
    assert list(held.y) == pytest.approx([0.79, 0.87])


def test_the_numbers_are_json(comparison: Comparison) -> None:
    read = json.loads(json.dumps(asdict(comparison)))
    assert read["contestants"]["search"]["kept"]["select"]["0.5"]["metrics"] == [0.86, 0.88]

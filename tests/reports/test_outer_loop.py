"""Hypervolume and importance, each against another way to compute it."""

from __future__ import annotations

import itertools
import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json
from optuna.exceptions import ExperimentalWarning

from orchestrator.runs.records import RunRecord, load_optuna_study
from reports.curves import Curve
from reports.figures.budget import budget_section
from reports.figures.outer_loop import (
    FEWEST,
    area,
    hypervolume,
    importances,
    knob_panel,
    knob_points,
    outer_section,
    quartiles,
    reference_point,
)
from reports.overlay import overlay
from tests.reports.conftest import many_run, with_result


def covered(points: list[tuple[float, float]], worst: float) -> float:
    """Area that (ratio, metric) points dominate above `worst` and left of ratio 1, by cells."""
    xs = sorted({min(x, 1.0) for x, _ in points} | {1.0})
    return sum(
        (right - left) * max((y - worst for x, y in points if x <= left and y > worst), default=0)
        for left, right in itertools.pairwise(xs)
    )


@given(rows=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9), st.booleans()), max_size=10))
def test_hypervolume_is_the_area_under_the_front(
    rows: list[tuple[int, int, bool]], make_run: Any, make_trial: Any
) -> None:
    trials = [
        make_trial(n, x * 100_000, y / 10, target=None if inside else 0.99)
        for n, (x, y, inside) in enumerate(rows)
    ]
    run = make_run(trials)
    found = hypervolume(run)
    assert len(found.shares) == len(rows)
    worst, ratio = reference_point(run.unpruned.metric)
    assert (worst, ratio) == (0.45, 1.0)
    for place, share in enumerate(found.shares, 1):
        front = [(t.result.ratio, t.result.metric) for t in make_run(trials[:place]).front]
        assert share == pytest.approx(covered(front, worst) / 0.45, abs=1e-12)
        assert area(front, worst, ratio) == pytest.approx(covered(front, worst), abs=1e-12)


def test_without_a_model_inside_its_budget_optuna_warns_of_nothing(
    make_run: Any, make_trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    monkeypatch.setattr(logging.Logger, "handle", lambda self, record: said.append(record.msg))
    verbosity = optuna.logging.get_verbosity()
    run = make_run([make_trial(number, 500_000, 0.8, target=0.2) for number in range(2)])
    assert hypervolume(run).shares == (0.0, 0.0)
    assert said == []
    assert optuna.logging.get_verbosity() == verbosity


@pytest.mark.parametrize(
    ("unpruned", "worst", "said"),
    [(0.9, 0.45, "0.45: half the unpruned model's)"), (-0.1, -1.1, "-1.1: the unpruned model's l")],
)
def test_the_caption_says_where_the_reference_point_is(
    unpruned: float, worst: float, said: str, make_run: Any, make_trial: Any
) -> None:
    """A correlation may be below 0. A model that is better covers more than the ideal."""
    base = make_run([make_trial(n, 100_000, unpruned + 0.5) for n in range(FEWEST)])
    run = replace(base, unpruned=replace(base.unpruned, metric=unpruned))
    assert reference_point(run.unpruned.metric) == (worst, 1.0)
    assert hypervolume(run).shares[-1] > 1
    section = outer_section(overlay([run]))
    assert section is not None
    assert said in section.panels[0].caption
    assert "Better models may cover more than 100%" in section.panels[0].caption


@pytest.mark.slow
def test_hypervolume_and_importance_are_those_of_the_storage(stored_run: RunRecord) -> None:
    """Optuna's own functions on the study in the storage; a metric is negated for importance."""
    study = load_optuna_study(stored_run.folder)
    full, metric = stored_run.unpruned.cost_full, stored_run.unpruned.metric
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        figure = optuna.visualization.plot_hypervolume_history(study, [metric / 2, full])
    theirs = np.array(figure.data[0].y) / (full * metric / 2)
    found = hypervolume(stored_run)
    assert found.shares == pytest.approx(theirs.tolist())
    assert list(found.seconds) == sorted(found.seconds)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for objective, sign, place in (("accuracy", -1, 0), ("FLOPs", 1, 1)):
            theirs = optuna.importance.get_param_importances(
                study, target=lambda trial, s=sign, p=place: s * trial.values[p]
            )
            assert importances(stored_run)[objective] == pytest.approx(theirs)


def test_importance_has_the_right_sign_for_a_metric_that_is_maximised() -> None:
    """Only near flops_weight 10 is the metric high; low metrics are all alike (trap T4).

    Taken for a loss, the best tenth would be spread over every knob.
    """
    run = many_run(200)
    trials = [
        with_result(t, metric=max(0.0, t.knobs["flops_weight"] - 5) / 10) for t in run.finished
    ]
    found = importances(replace(run, trials=tuple(trials)))["accuracy"]
    assert max(found, key=lambda name: found[name]) == "flops_weight"
    assert found["flops_weight"] > 0.9
    assert sum(found.values()) == pytest.approx(1)
    assert importances(replace(run, trials=tuple(trials[:9]))) == {}


def test_importance_is_not_measured_by_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap T15: fANOVA takes a minute at a thousand trials."""
    monkeypatch.delattr(optuna.importance.FanovaImportanceEvaluator, "evaluate")
    assert set(importances(many_run(20))) == {"accuracy", "FLOPs"}


def test_an_area_has_no_part_below_the_worst_or_beyond_the_last() -> None:
    steps = [(0.2, 0.9), (0.5, 0.4), (0.7, 0.8), (1.1, 0.95)]
    assert area(steps, 0.5, 1.0) == pytest.approx(0.4 * 0.3 + 0 * 0.2 + 0.3 * 0.3)
    assert area([(1.1, 0.95)], 0.5, 1.0) == area([], 0.5, 1.0) == 0
    worst, last = reference_point(-0.2)
    assert area([(0.0, -0.2)], worst, last) == pytest.approx((-0.2 - worst) * last)


def test_quartiles_of_staircases() -> None:
    histories = [[(1.0, 0.1), (2.0, 0.4)], [(1.0, 0.3), (3.0, 0.5)], [(1.5, 0.2), (2.5, 0.6)]]
    x, (low, middle, high) = quartiles(histories)
    assert x == [1.0, 1.5, 2.0]
    assert middle == pytest.approx([0.1, 0.2, 0.3])
    assert low == pytest.approx([0.05, 0.15, 0.25])
    assert high == pytest.approx([0.2, 0.25, 0.35])


def test_a_knob_of_no_value_is_drawn(make_run: Any, make_trial: Any) -> None:
    trials = [make_trial(n, 500_000, 0.8, knobs={"kept": kept}) for n, kept in enumerate((None, 2))]
    assert knob_points(overlay([make_run(trials)]), 0, "kept", trials)["x"] == ["None", 2]


def test_runs_with_other_spaces_share_their_knobs(make_run: Any, make_trial: Any) -> None:
    """What one tunes by a logarithm and another does not, by other choices, or of another kind."""

    def run(number: int, knobs: dict[str, Any], space: dict[str, Any]) -> RunRecord:
        texts = {f"space.{name}": distribution_to_json(own) for name, own in space.items()}
        trials = [make_trial(number, 500_000, 0.8, knobs=knobs)]
        base: RunRecord = make_run(trials, name=f"r{number}")
        return replace(base, definition={**base.definition, **texts})

    soft, both = (CategoricalDistribution(c) for c in (["soft"], ["soft", "hard"]))
    runs = [
        run(
            0,
            {"kind": "hard", "weight": 0.0, "odd": "soft"},
            {"kind": both, "weight": FloatDistribution(0, 1), "odd": both},
        ),
        run(
            1,
            {"kind": "soft", "weight": 5.0, "odd": 3.0},
            {
                "kind": soft,
                "weight": FloatDistribution(0.1, 10, log=True),
                "odd": FloatDistribution(0, 9),
            },
        ),
    ]
    slices = knob_panel(overlay(runs))
    assert slices is not None
    axes = [trace.x[0] for trace in slices.figure.data]
    assert "hard" in axes
    assert 5.0 in axes
    assert 3.0 not in axes
    searched = Curve([{"stage": "search", "step": "0", "open_ratio": "0.6"}])
    section = budget_section(overlay(runs), [{0: searched}, {1: searched}])
    assert section is not None
    steering = section.panels[1].figure
    axes = {axis.title.text: axis.type for axis in steering.select_xaxes()}
    assert axes["weight"] != "log", "0 would vanish"
    assert "odd" not in axes


def test_few_trials_tell_nothing_of_the_outer_loop() -> None:
    """Fewer than ten say little of how the front grew, fewer than forty of which knob matters."""
    panels = {}
    for trials in (9, 39, 40):
        section = outer_section(overlay([many_run(trials)]))
        assert section is not None
        panels[trials] = [panel.name for panel in section.panels]
        assert bool(section.sentences) == (trials > 9)
    grown = ["hypervolume-trials", "hypervolume-seconds"]
    assert panels[9] == ["slices"]
    assert panels[39] == [*grown, "slices"]
    assert panels[40] == [*grown, "importance", "slices"]

"""Whether the search did what it was told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plotly.subplots import make_subplots

from orchestrator.runs.records import RunRecord
from reports.curves import Curve, points_each, read_curves
from reports.figures import theme
from reports.figures.budget import budget_section, left_open
from reports.overlay import overlay
from tests.reports.conftest import missing_an_aim


def curve(*ratios: float) -> Curve:
    rows = [{"stage": "search", "step": str(n), "open_ratio": str(r)} for n, r in enumerate(ratios)]
    return Curve([*rows, {"stage": "recover", "step": "0", "open_ratio": ""}])


def test_what_the_masks_left_open_is_the_last_that_the_search_said(mixed_run: RunRecord) -> None:
    """Targets 0.7, 0.4 and 0.5 ± 5%, and 0.2 that was missed with 0.3."""
    curves = {0: curve(1.0, 0.72), 1: curve(1.0, 0.9), 2: curve(1.0, 0.4)}
    found = {trial.number: ratio for trial, ratio in left_open(mixed_run, curves)}
    assert found == {0: 0.72, 1: 0.9, 2: 0.4}
    section = budget_section(overlay([mixed_run]), [curves])
    assert section is not None
    assert section.sentences == (
        "3 of 4 finished trials are inside their budget.",
        "In 1 of 3 trials the masks were still open above the budget when the search ended: there "
        "the ranking of units, not the search, met the budget.",
    )
    aiming = replace(mixed_run, trials=tuple(map(missing_an_aim, mixed_run.finished)))
    assert budget_section(overlay([aiming]), [curves]).sentences == section.sentences
    _, cut, hollow = section.panels[0].figure.data
    assert list(cut.y) == [0.7, 0.4, 0.5, 0.3]
    assert list(cut.error_y.array) == pytest.approx([0.035, 0.02, 0.025, 0.01])
    assert list(hollow.y) == [0.72, 0.9, 0.4]


def test_each_knob_has_a_plot(make_many: Any) -> None:
    run = make_many(12)
    curves = {number: curve(2 * run.trials[number].result.target_ratio) for number in range(12)}
    section = budget_section(overlay([run]), [curves])
    assert section is not None
    figure = section.panels[1].figure
    assert len(figure.data) == len(run.space)
    for trace in figure.data:
        assert list(trace.y) == pytest.approx([1.0] * 12)


def test_of_very_many_knobs_the_plots_stand_closer() -> None:
    for columns in (1, 12, 36, 300):
        make_subplots(rows=1, cols=columns, horizontal_spacing=theme.spacing(columns))
    assert theme.spacing(1) == theme.spacing(12) == 0.03 > theme.spacing(36)


def test_without_curves_there_are_no_masks_to_speak_of(mixed_run: RunRecord) -> None:
    section = budget_section(overlay([mixed_run]), [{}])
    assert section is not None
    assert len(section.sentences) == len(section.panels) == 1


def test_a_thinned_curve_keeps_its_ends_and_every_stage(stored_run: RunRecord) -> None:
    own = read_curves(stored_run)[0]
    thin = own.thinned(8)
    assert [place for place, _ in thin["loss"]] == [*range(0, 40, 10), 39, *range(40, 80, 10), 79]
    assert own.columns["open_ratio"][-1][0] == 39
    assert own.stages == {"search": 0, "recover": 40}
    assert [points_each(curves) for curves in (1, 300, 1000, 5000)] == [60, 40, 16, 16]

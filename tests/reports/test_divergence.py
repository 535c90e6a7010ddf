"""Reports of runs that compare their models by the divergence from the teacher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.runs.records import FinishedTrial, RunRecord, TrialRecord
from reports.choice import choose
from reports.figures import outer_loop
from reports.figures.front import front_figure
from reports.figures.outer_loop import hypervolume, importances, outer_section
from reports.overlay import overlay
from reports.page.page import write_report
from reports.pareto import pareto_view
from reports.recommended import recommendations
from tests.reports.conftest import many_run, with_result

FAR = {0: 0.02, 1: 0.04, 2: 0.5, 3: 0.3, 4: 0.4}


def compared(run: RunRecord, far: dict[int, float]) -> RunRecord:
    """The run as it were if its trials had these divergences, and were compared by them."""
    by: Any = {"objective": "divergence"}

    def of(trial: TrialRecord) -> TrialRecord:
        if not isinstance(trial, FinishedTrial):
            return trial
        own = far[trial.number]
        return with_result(trial, divergence=own, heldout_divergence=1.5 * own, **by)

    unpruned = replace(run.unpruned, divergence=0.0, heldout_divergence=0.0, **by)
    return replace(run, unpruned=unpruned, trials=tuple(map(of, run.trials)))


@pytest.fixture
def lucky_run(make_run: Any, make_trial: Any) -> RunRecord:
    """By its metric the front is trials 0 and 3; by the divergence 0, 1 and 3. The dearest model
    on it has not the best metric."""
    sizes = [(800_000, 0.87), (500_000, 0.86), (600_000, 0.84), (200_000, 0.88), (300_000, 0.5)]
    trials = [make_trial(number, *size) for number, size in enumerate(sizes)]
    return make_run(trials)


def numbers(trials: Sequence[TrialRecord]) -> list[int]:
    return [trial.number for trial in trials]


def test_front_and_choice_go_by_the_objective(lucky_run: RunRecord) -> None:
    run = compared(lucky_run, FAR)
    assert numbers(lucky_run.front) == [3]
    assert numbers(run.front) == [3, 1, 0]
    view = pareto_view(run)
    assert numbers(view.dominated) == [2, 4]
    assert choose(run, max_ratio=0.6) == 1
    assert choose(run, knee=True) == 1
    assert choose(run, min_metric=0.87) == 3
    with pytest.raises(RunError, match=r"the nearest is trial 3 with 0\.8800"):
        choose(run, min_metric=0.95)
    found = {row.trial.number: row.reasons for row in recommendations(view)}
    assert found == {1: ("knee",), 3: ("recommended", "cheapest within 3%")}, (
        "a share of the metric"
    )


def test_the_figure_draws_divergences_on_a_logarithmic_axis(lucky_run: RunRecord) -> None:
    figure = front_figure(overlay([compared(lucky_run, FAR)]))
    traces = {trace.name: trace for trace in figure.data}
    assert list(traces["front"].y) == [0.3, 0.04, 0.02]
    assert list(traces["held out"].y) == pytest.approx([0.45, 0.06, 0.03])
    assert traces["front"].error_y.array is None
    assert "accuracy 0.8800 (0.860 to 0.900), held out 0.8700" in traces["front"].hovertext[0]
    assert traces["front"].hovertext[0].count("divergence") == 2
    assert "unpruned model" not in traces, "its 0 is nowhere on such an axis"
    assert not figure.layout.shapes
    assert (figure.layout.yaxis.type, figure.layout.yaxis.title.text) == (
        "log",
        "divergence, selection split",
    )
    words = {note.text: note.y for note in figure.layout.annotations}
    assert words == {"knee": math.log10(0.04), "recommended": math.log10(0.3)}
    nothing = front_figure(overlay([compared(lucky_run, dict.fromkeys(FAR, 0.0))]))
    assert not nothing.layout.annotations


def test_the_hypervolume_is_counted_from_a_divergence_of_one(
    lucky_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer_loop, "FEWEST", 1)
    run = compared(lucky_run, FAR)
    by_hand = 0.3 * (1 - 0.3) + 0.3 * (1 - 0.04) + 0.2 * (1 - 0.02)
    assert hypervolume(run).shares[-1] == pytest.approx(by_hand)
    section = outer_section(overlay([run]))
    assert section is not None
    assert "the reference point (ratio 1, divergence 1), as a share" in section.panels[0].caption


def test_knobs_matter_for_divergences() -> None:
    runs = [many_run(40, seed) for seed in range(3)]
    made = [
        compared(run, {t.number: 0.01 + (1 - t.result.metric) ** 2 for t in run.finished})
        for run in runs
    ]
    together = overlay(made)
    panels = {panel.name: panel for panel in outer_section(together).panels}  # type: ignore[union-attr]
    assert importances(made[0]).keys() == {"divergence", "FLOPs"}
    assert {trace.name.split(": ")[1] for trace in panels["importance"].figure.data} == {
        "low divergence",
        "low FLOPs",
    }
    assert panels["slices"].figure.layout.yaxis.type == "log"
    assert panels["slices"].figure.layout.yaxis5.type != "log"
    # The best metric and the least divergence are the same trial's: so are the knobs' shares.
    assert importances(made[0])["divergence"] == pytest.approx(importances(runs[0])["accuracy"])


def test_two_objectives_share_no_page(lucky_run: RunRecord, tmp_path: Path) -> None:
    other = replace(compared(lucky_run, FAR), metric_name="mcc", definition={"task.data": "y"})
    with pytest.raises(RunError, match="compare models by metric and divergence; two objectives"):
        write_report([lucky_run, other], tmp_path / "report.html")
    assert not overlay([compared(lucky_run, FAR), other]).relative, "nats of two tasks are nats"

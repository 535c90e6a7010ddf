"""Paired comparisons: what a front says holds on rows that chose nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.runs.answers import write_answers, write_rows
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.page.page import write_report
from reports.pareto import paired, pareto_view
from reports.recommended import expected_of, recommendations
from tests.reports.conftest import with_result

POOL = 60_000
LOSSES = (0.03, 0.02, 0.014, 0.011, 0.009, 0.006, 0.003, 0.0)
"""What the models lose of the unpruned one's 0.87 on all rows, by rising cost."""


def pool(seed: int) -> list[np.ndarray]:
    """Which rows each model, and last the unpruned one, has right: they differ on 8% of them."""
    generator = np.random.default_rng(seed)
    unpruned = generator.random(POOL) < 0.87
    models = []
    for loss in LOSSES:
        differs = generator.random(POOL) < 0.08
        redrawn = generator.random(POOL) < 0.87 - loss / 0.08
        models.append(np.where(differs, redrawn, unpruned))
    return [*models, unpruned]


def run_on(
    rows: np.ndarray, right: list[np.ndarray], make: Any, trial: Any, folder: Path
) -> RunRecord:
    """A run whose selection split is these rows."""

    def logits(own: np.ndarray) -> dict[str, np.ndarray]:
        said = np.eye(2, dtype=np.float32)[1 - own[rows].astype(int)]
        return {"select": said, "heldout": said}

    accuracy = [float(own[rows].mean()) for own in right]
    trials = []
    for number, metric in enumerate(accuracy[:-1]):
        one = trial(number, 100_000 * (number + 1), metric)
        width = 2 * 1.96 * (metric * (1 - metric) / len(rows)) ** 0.5
        ends = (metric - width / 2, metric + width / 2)
        trials.append(with_result(one, interval=ends))
    run: RunRecord = make(trials, folder=folder)
    run = replace(run, unpruned=replace(run.unpruned, metric=accuracy[-1]))
    own = RunFolder(folder)
    own.rows.unlink(missing_ok=True)
    labels = np.zeros(len(rows), dtype=np.int64)
    write_rows(own, {"select": labels, "heldout": labels}, logits(right[-1]), {})
    for number, model in enumerate(right[:-1]):
        own.trial(number).mkdir(parents=True, exist_ok=True)
        write_answers(own.answers(number), logits(model))
    return run


@pytest.fixture
def draw(make_run: Any, make_trial: Any, tmp_path: Path) -> Any:
    """Makes the run of a draw of so many selection rows."""

    def run(rows: int, seed: int) -> RunRecord:
        chosen = np.random.default_rng(seed).integers(POOL, size=rows)
        return run_on(chosen, pool(0), make_run, make_trial, tmp_path)

    return run


@pytest.mark.slow
def test_cheapest_within_a_loss_keeps_its_word(draw: Any) -> None:
    """Of 60 draws of 1,500 rows hardly any names a model that loses more than 1% of 0.87 on all
    rows, where the metrics alone name one each second time."""
    right = pool(0)
    lost = [float(right[-1].mean() - own.mean()) for own in right[:-1]]
    by_metric = by_pairs = named = 0
    for seed in range(60):
        run = draw(1500, seed)
        margin = 0.01 * run.unpruned.metric
        seems = next(t.number for t in run.front if t.result.metric >= run.unpruned.metric - margin)
        by_metric += lost[seems] > margin
        for row in recommendations(pareto_view(run)):
            if "cheapest within 1%" in row.reasons:
                named += 1
                by_pairs += lost[row.trial.number] > margin
    assert by_metric > 15
    assert by_pairs <= 6
    assert named > 10


def test_where_no_model_is_surely_within_the_loss_rows_are_named(draw: Any) -> None:
    found = recommendations(pareto_view(draw(200, 3)))
    words = [reason for row in found for reason in row.reasons if "1%" in reason]
    assert len(words) == 1
    assert words[0].startswith("may be within 1% (")
    assert words[0].endswith(" rows would tell)")


def test_on_so_few_rows_that_none_may_differ_by_luck_nothing_is_sure(draw: Any) -> None:
    told = []
    for seed in range(8):
        rows = recommendations(pareto_view(draw(60, seed)))
        told += [reason for row in rows for reason in row.reasons if "within" in reason]
    assert told
    assert not [reason for reason in told if reason.startswith("cheapest")]
    assert "may be within 1% (299 rows would tell)" in told, "where no row differed"


def test_models_that_the_rows_do_not_tell_apart_are_not_called_dominated(draw: Any) -> None:
    few, many = pareto_view(draw(300, 1)), pareto_view(draw(20_000, 1))
    assert len(few.near) > len(many.near)
    for view in (few, many):
        assert len(view.front) + len(view.near) + len(view.dominated) == len(LOSSES)
    comparison = paired(draw(20_000, 1))
    assert comparison is not None
    best, worst = comparison.run.finished[-1], comparison.run.finished[0]
    cheap = with_result(best, cost=worst.result.cost)
    assert comparison.surely_matched([cheap], [worst]) == {worst.number}
    assert comparison.surely_matched([worst], [best]) == set()


def test_the_page_says_what_to_expect_of_the_model_within_the_loss(
    draw: Any, tmp_path: Path
) -> None:
    run = draw(500, 0)
    one = expected_of(pareto_view(run))
    assert one is not None
    assert one.expected is not None
    assert any("within 1%" in reason for reason in one.reasons)
    assert one.trial.result.metric - 0.02 < one.expected < one.trial.result.metric
    page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(f"expected on other rows {one.expected:.3f}") == 1
    RunFolder(run.folder).answers(one.trial.number).unlink()
    assert expected_of(pareto_view(run)) is None


def test_a_model_that_answers_alike_is_as_good(draw: Any) -> None:
    run = draw(500, 0)
    twin = run.finished[3]
    comparison = paired(run)
    assert comparison is not None
    assert comparison.surely_matched([twin], [twin]) == {twin.number}


def test_a_run_without_answers_is_sorted_by_its_metrics(draw: Any) -> None:
    run = draw(300, 1)
    RunFolder(run.folder).rows.unlink()
    view = pareto_view(run)
    assert view.paired is None
    assert view.near == ()
    assert all("would tell" not in " ".join(row.reasons) for row in recommendations(view))

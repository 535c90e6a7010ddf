"""The front of a run in milliseconds: measured, kept, and shown by page and model card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from objectives.bert.architecture import BertArchitecture, LayerUnits
from objectives.bert.cutting import cut
from objectives.problem import Problem
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.exporting.card import model_card
from reports.page.page import write_report
from reports.speed import bench_front, keep_speeds, read_speeds
from tests.conftest import TINY
from tests.reports.page.test_page import Page

SETTINGS: dict[str, Any] = {"engines": ["eager"], "lengths": [4], "rounds": 2}
UNITS = ["ms@eager-cpu-1threads-b1-s4", "ms@eager-cpu-1threads-b2-s4"]


@pytest.fixture(scope="module")
def timed(
    problem: Problem, tmp_path_factory: pytest.TempPathFactory, make_run: Any, make_trial: Any
) -> RunRecord:
    """Models 0 and 1 are on the front and were timed, 2 is dominated, 3 joined the front later."""
    folder = tmp_path_factory.mktemp("runs") / "timed"
    for number, heads in enumerate([(0, 1, 2, 3), (1,)]):
        layer = LayerUnits(heads, tuple(range(8 * len(heads))))
        model = cut(
            problem.student.state_dict(),
            problem.student.config,
            BertArchitecture((layer,) * TINY.layers),
        )
        model.save_pretrained(folder / "trials" / f"{number:05d}" / "model")
    rows = [(0, 700_000, 0.89), (1, 400_000, 0.81), (2, 500_000, 0.80), (3, 300_000, 0.7)]
    run: RunRecord = make_run([make_trial(*row) for row in rows], folder=folder)
    ended = replace(run, trials=run.trials[:3])
    keep_speeds(ended, bench_front(ended, batches=[1, 2], threads=1, **SETTINGS))
    return run


def test_the_front_is_timed_and_kept(timed: RunRecord) -> None:
    speeds = read_speeds(timed)
    assert [one.unit for one in speeds] == UNITS
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    rows = [row for row in document["timings"] if row["batch"] == 2]
    assert [row["trial"] for row in rows] == [None, 1, 0], "the reference, then by rising cost"
    assert list(speeds[1].models) == [1, 0]
    assert speeds[1].reference_milliseconds == rows[0]["median"]
    for row in rows[1:]:
        model = speeds[1].models[row["trial"]]
        assert (model.milliseconds, model.flops_ratio) == (row["median"], row["flops_ratio"])
        assert model.speed_up == pytest.approx(rows[0]["median"] / row["median"])


def test_without_times_there_are_none(mixed_run: RunRecord, timed: RunRecord) -> None:
    assert read_speeds(mixed_run) == ()
    with pytest.raises(RunError, match="no model on its front yet; there is nothing to time"):
        bench_front(replace(timed, trials=()))
    with pytest.raises(RunError, match=r"'.*00003/model', the model of trial 3, is gone"):
        bench_front(timed, **SETTINGS)
    assert len(read_speeds(timed)) == 2, "what was kept is still there"


def test_a_damaged_model_is_named_as_export_names_it(timed: RunRecord, tmp_path: Path) -> None:
    run = replace(timed, folder=copytree(timed.folder, tmp_path / "run"), trials=timed.trials[:2])
    weights = RunFolder(run.folder).model(1) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(
        RunError, match=r"00001': trial 1 is damaged: model/model\.safetensors is .*; put the file"
    ):
        bench_front(run, **SETTINGS)


WITHOUT_REFERENCE = """{"format": "maskfront-bench-1", "reference": "unpruned", "conditions": {},
"timings": [{"model": "other", "median": 1, "engine": "eager", "batch": 1, "length": 8}]}"""


@pytest.mark.parametrize(
    "text", ['{"form', "[]", '{"format": "maskfront-bench-0"}', WITHOUT_REFERENCE]
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path, make_run: Any) -> None:
    run = make_run(folder=tmp_path)
    RunFolder(tmp_path).bench.write_text(text)
    with pytest.raises(RunError, match=r"bench\.json' is damaged .*; delete it, or write it anew"):
        read_speeds(run)


def test_the_card_of_a_model_has_its_latency(timed: RunRecord) -> None:
    card = model_card(timed, timed.trials[1], plain=False, notes=[])
    (row,) = (line for line in card.splitlines() if UNITS[0] in line)
    speed = read_speeds(timed)[0]
    own, full = speed.models[1].milliseconds, speed.reference_milliseconds
    assert row == (
        f"| {UNITS[0]}, {speed.models[1].speed_up:.2f} times as fast | {own:,.3f} | {full:,.3f} |"
    )
    assert "ms@" not in model_card(timed, timed.trials[2], plain=False, notes=[])


@pytest.mark.slow
def test_the_page_shows_flops_against_speed(
    timed: RunRecord, tmp_path: Path, open_tab: Callable[..., Any]
) -> None:
    path = write_report([timed], tmp_path / "report.html")
    page = Page(path)
    assert "of the FLOPs, trial 1 runs" in page.words
    assert "1 of the front's models joined it later, and were not timed." in page.words
    assert "maskfront bench" not in page.words
    speeds = read_speeds(timed)
    _, *traces = page.documents["figure-speed-up"]["data"]
    assert [trace["y"] for trace in traces] == [
        [one.models[number].speed_up for number in (1, 0)] for one in speeds
    ]

    tab = open_tab()
    opened = tab.open_whole(path)
    assert opened.locator("#speed-up .scatterlayer .point").count() == 4
    opened.select_option("#axis", UNITS[1])
    shown = "() => Object.fromEntries(front.data.map((trace) => [trace.name, trace.x]))"
    xs = opened.evaluate(shown)
    assert xs["front"] == [None, *(speeds[1].models[number].milliseconds for number in (1, 0))]
    assert xs["unpruned model"] == [speeds[1].reference_milliseconds]
    assert xs["dominated"] == [None]
    opened.click("#front-section button.trial[value='0 1']")
    assert UNITS[0] in opened.locator("#card").inner_text()
    assert tab.seen == []


def test_runs_share_the_units_that_all_were_timed_in(
    timed: RunRecord, mixed_run: RunRecord, tmp_path: Path
) -> None:
    page = Page(write_report([timed, replace(mixed_run, name="other")], tmp_path / "report.html"))
    assert page.documents["data"]["latencies"] == []
    assert "Milliseconds of other: maskfront bench runs/tiny measures" in page.words
    assert "figure-speed-up" in page.documents

"""One way to choose a model of a front, its laws, and what is said where nothing gets there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from objectives.delivery.timings import Bench, Timing
from objectives.engines.names import Engine
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.choice import choose
from reports.exporting.export import export
from reports.model_folders import kept_front
from reports.page.page import write_report
from reports.speed import keep_speeds


@pytest.fixture
def bent_run(make_run: Any, make_trial: Any) -> RunRecord:
    """A front of four, whose cheap half brings most of the metric; one trial is no part of it."""
    run: RunRecord = make_run(
        [
            make_trial(0, 900_000, 0.90),
            make_trial(1, 200_000, 0.60),
            make_trial(2, 400_000, 0.80),
            make_trial(3, 600_000, 0.85),
            make_trial(4, 100_000, 0.99, target=0.5),
        ]
    )
    return run


@pytest.mark.parametrize(
    ("way", "trial"),
    [
        ({"trial": 4}, 4),
        ({"max_ratio": 0.4}, 2),
        ({"max_ratio": 0.59}, 2),
        ({"max_ratio": 1}, 0),
        ({"min_metric": 0.80}, 2),
        ({"min_metric": 0.81}, 3),
        ({"min_metric": 0.1}, 1),
        ({"knee": True}, 2),
        ({}, 0),
    ],
)
def test_each_way_finds_its_model(bent_run: RunRecord, way: dict[str, Any], trial: int) -> None:
    assert choose(bent_run, **way) == trial


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"max_ratio": 50.0}, r"50 is not a share in \(0, 1\]: give 0\.5, not 50"),
        ({"max_ratio": 0.0}, "0 is not a share"),
        ({"max_ratio": 0.1}, r"FLOPs ratio <= 0\.1 on its front; the nearest is trial 1 with 0\.2"),
        ({"min_metric": 0.95}, r"accuracy >= 0\.95 .*; the nearest is trial 0 with 0\.9000$"),
        ({"trial": 9}, r"no trial 9; finished: 0, 1, 2, 3, 4$"),
        ({"trial": 0, "knee": True}, r"in one way, not in 2 \(trial=\.\.\., max_ratio=\.\.\., "),
        ({"max_ratio": 0.0, "min_metric": 0.0}, "in one way, not in 2"),
    ],
)
def test_what_cannot_be_chosen_is_said(
    bent_run: RunRecord, way: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        choose(bent_run, **way)


def bench(run: RunRecord, *rows: tuple[str, int, bool, dict[int | None, float]]) -> None:
    """Keep milliseconds by trial, None being the reference, for engine, batch and kind."""
    timings = [
        Timing(
            model="unpruned" if number is None else str(RunFolder(run.folder).model(number)),
            engine=cast(Engine, engine),
            bits=8 if engine.endswith("int8") else 32,
            bytes=1,
            batch=batch,
            length=16,
            flops=1,
            quartiles=(ms, ms, ms),
            slow=ms,
            texts=texts,
        )
        for engine, batch, texts, times in rows
        for number, ms in times.items()
    ]
    keep_speeds(run, Bench("unpruned", tuple(timings), {}, {"device": "cpu", "threads": 1}))


def test_the_best_within_milliseconds_by_text_to_label(bent_run: RunRecord, tmp_path: Path) -> None:
    run = replace(bent_run, folder=tmp_path)
    with pytest.raises(RunError, match=r"no model .* timed; `maskfront bench .* does that \(max_m"):
        choose(run, max_ms=5)
    tokens = {None: 9.0, 0: 8.0, 1: 2.0, 2: 4.0, 3: 6.0}
    bench(run, ("eager", 1, False, tokens), ("eager", 8, False, dict.fromkeys(tokens, 0.1)))
    assert [choose(run, max_ms=ms) for ms in (2, 5.9, 6, 100)] == [1, 2, 3, 0], "one text a time"
    bench(
        run,
        ("eager", 1, False, dict.fromkeys(tokens, 0.1)),
        ("onnxruntime-int8", 1, True, dict.fromkeys(tokens, 0.1)),  # other answers than the trial's
        ("onnxruntime", 1, True, {None: 5.0, 0: 3.0, 2: 1.0}),
    )
    assert [choose(run, max_ms=ms) for ms in (1, 3)] == [2, 0]
    with pytest.raises(
        RunError, match=r"0\.5 ms a text or less .*; the nearest is trial 2 with 1\."
    ):
        choose(run, max_ms=0.5)


def test_a_study_that_counts_milliseconds_needs_no_bench(timed_run: RunRecord) -> None:
    assert [choose(timed_run, max_ms=ms) for ms in (5, 8.7, 8.8)] == [1, 1, 0]
    of_four = replace(timed_run, definition={**timed_run.definition, "latency_batch": "4"})
    assert choose(of_four, max_ms=2.2) == 0, "a text is a quarter of the pass"


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (4, r"trial 4 has no model, it is failed \(all units closed\); finished: 0, 1, 2, 3$"),
        (6, "trial 6 has no model, it is running;"),
    ],
)
def test_a_trial_without_a_model_says_why(mixed_run: RunRecord, trial: int, message: str) -> None:
    with pytest.raises(RunError, match=message):
        choose(mixed_run, trial=trial)


def test_models_that_were_deleted_are_left_out(bent_run: RunRecord, tmp_path: Path) -> None:
    run, said = replace(bent_run, folder=tmp_path), list[str]()
    for number in (0, 2):
        (model := RunFolder(tmp_path).model(number)).mkdir(parents=True)
        (model / "model.safetensors").touch()
    assert [trial.number for trial in kept_front(run, said.append)] == [2, 0]
    assert said == [f"trial {number} is left out: its model is gone" for number in (1, 3)]
    with pytest.raises(RunError, match="the model of trial 1, is gone"):
        kept_front(replace(run, folder=tmp_path / "empty"), said.append)


def test_a_front_without_a_knee_has_none_to_choose(make_run: Any, make_trial: Any) -> None:
    rows = [(200_000, 0.5), (600_000, 0.6), (900_000, 0.9)]
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    with pytest.raises(RunError, match=r"\(3 models\) has no knee: .* \(max_ratio=\.\.\., "):
        choose(run, knee=True)


def test_a_folder_is_no_record(mixed_run: RunRecord, tmp_path: Path) -> None:
    folder: Any = tmp_path
    message = r"is a PosixPath, not a Run; .*load_run\('runs/STUDY'\)$"
    for call in (
        lambda: choose(folder, knee=True),
        lambda: export(folder, 0, tmp_path / "out"),
        lambda: write_report(folder, tmp_path / "report.html"),
        lambda: write_report([mixed_run, folder], tmp_path / "report.html"),
    ):
        with pytest.raises(RunError, match=message):
            call()
    with pytest.raises(RunError, match=r"^'runs/a' is a str, not a Run"):
        write_report("runs/a", tmp_path / "report.html")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_front_has_nothing_to_choose(make_run: Any, make_trial: Any) -> None:
    run = make_run([make_trial(0, 500_000, 0.8, target=0.1)])
    for way in ({"knee": True}, {"max_ratio": 1.0}, {"min_metric": 0.0}):
        with pytest.raises(RunError, match=r"no model on its front yet; .* \(trial=\.\.\.\)$"):
            choose(run, **way)
    assert choose(run, trial=0) == 0

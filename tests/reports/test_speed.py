"""The front of a run in milliseconds: measured, kept, and shown by page and model card."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from objectives.delivery.exported import load_model, score_onnx
from objectives.engines.onnx_model import write_int8, write_onnx
from objectives.errors import UserError
from objectives.measures.evaluate import score
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.text.roles import load
from objectives.text.task import Task
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import Study
from reports.exporting.card import model_card
from reports.figures.speed import speed_section
from reports.overlay import overlay
from reports.page.page import write_report
from reports.speed import (
    Speed,
    TimedModel,
    Worth,
    bench_front,
    fastest,
    inputs_of,
    keep_speeds,
    read_speeds,
    without_kernel,
)
from tests.conftest import TINY
from tests.reports.page.test_page import Page

SETTINGS: dict[str, Any] = {"engines": ["eager"], "lengths": [4], "rounds": 2}
EAGER = ["ms@eager-cpu-1threads-b1-s4", "ms@eager-cpu-1threads-b2-s4"]
INT8 = "ms@onnxruntime-int8-cpu-1threads-b2-s4"


@pytest.fixture(scope="module")
def study(planted_task: Task, tiny_bert: str) -> Study:
    """What the workbench was prepared for."""
    teacher = Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3)
    space = {"target_ratio": FloatDistribution(0.1, 1)}
    return Study(name="tiny", task=planted_task, teacher=teacher, method=MaskSearch(), space=space)


@pytest.fixture(scope="module")
def run(
    problem: Problem,
    planted_task: Task,
    tmp_path_factory: pytest.TempPathFactory,
    make_run: Any,
    make_trial: Any,
) -> RunRecord:
    """Models 0 and 1 are on the front and on the disk, 2 is dominated, 3 joined the front later."""
    folder = tmp_path_factory.mktemp("runs") / "timed"
    copytree(problem.cache, RunFolder(folder).cache)
    for number, heads in enumerate([(0, 1, 2, 3), (1,)]):
        layer = LayerUnits(heads, tuple(range(8 * len(heads))))
        model = cut(
            problem.student.state_dict(),
            problem.student.config,
            BertArchitecture((layer,) * TINY.layers),
        )
        model.save_pretrained(folder / "trials" / f"{number:05d}" / "model")
    rows = [(0, 700_000, 0.89), (1, 400_000, 0.1), (2, 500_000, 0.09), (3, 300_000, 0.05)]
    record: RunRecord = make_run([make_trial(*row) for row in rows], folder=folder)
    data = load(planted_task).fingerprint
    return replace(record, definition={**record.definition, "task.data": data})


@pytest.fixture(scope="module")
def timed(run: RunRecord, study: Study) -> RunRecord:
    """The run when its first three trials were timed and scored."""
    pytest.importorskip("onnxruntime", reason="NOT TESTED: pip install 'maskfront[onnx]'")
    ended = replace(run, trials=run.trials[:3])
    settings = {**SETTINGS, "engines": ["eager", "bfloat16", "onnxruntime-int8"]}
    keep_speeds(ended, bench_front(ended, study, batches=[1, 2], threads=1, **settings))
    return run


def test_the_front_is_timed_and_kept(timed: RunRecord) -> None:
    speeds = read_speeds(timed)
    assert [one.unit for one in speeds if one.bits == 32] == EAGER
    assert [one.engine for one in speeds] == [
        *("eager", "eager", "bfloat16", "bfloat16"),
        *["onnxruntime-int8"] * 2,
    ]
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    rows = [row for row in document["timings"] if (row["engine"], row["batch"]) == ("eager", 2)]
    assert [row["trial"] for row in rows] == [None, 1, 0], "the reference, then by rising cost"
    assert list(speeds[1].models) == [1, 0]
    assert speeds[1].reference_model.milliseconds == rows[0]["median"]
    for row in rows[1:]:
        model = speeds[1].models[row["trial"]]
        assert (model.milliseconds, model.flops_ratio) == (row["median"], row["flops_ratio"])
        assert model.megabytes == row["bytes"] / 1e6
        assert model.speed_up == pytest.approx(rows[0]["median"] / row["median"])
        assert model.worth is None, "in float32 it is what its trial says"


@pytest.mark.slow
def test_fewer_bits_are_scored_on_the_studys_data_and_the_unpruned_model_is_the_teacher(
    timed: RunRecord, study: Study, problem: Problem, workbench: Workbench, tmp_path: Path
) -> None:
    data = inputs_of(timed, study)
    speeds = {one.engine: one for one in read_speeds(timed)}
    int8, bfloat16 = speeds["onnxruntime-int8"], speeds["bfloat16"]
    cut_model = load_model(RunFolder(timed.folder).model(1))
    for trial, model in ((None, problem.teacher), (1, cut_model)):
        write_onnx(model, tmp_path / "model.onnx")
        write_int8(tmp_path / "model.onnx", tmp_path / "int8.onnx")
        scores = score_onnx(tmp_path / "int8.onnx", data)
        assert [worth(int8, trial).metric, worth(int8, trial).heldout_metric] == scores
    low, high = worth(int8, 1).interval
    assert low < worth(int8, 1).metric < high
    cast = copy.deepcopy(problem.teacher).bfloat16()
    expected = score(cast, workbench.select, workbench.metric, "cpu")
    assert worth(bfloat16, None).metric == expected > 0.6, "no twin with random weights"
    assert all(one.worth for one in bfloat16.models.values())


def test_a_study_of_another_run_and_a_teacher_that_is_gone_are_named(
    run: RunRecord, study: Study, tmp_path: Path
) -> None:
    ended = replace(run, trials=run.trials[:2])
    other = replace(ended, definition={**run.definition, "task.data": "another"})
    with pytest.raises(RunError, match=r"study 'tiny' has other data than the run '.*timed'; name"):
        bench_front(other, study, **SETTINGS)
    with pytest.raises(RunError, match=r"own teacher; leave the other one out \(against=\.\.\.\)$"):
        bench_front(ended, study, against=tmp_path, **SETTINGS)
    copied = copytree(run.folder, tmp_path / "run", ignore=ignore_patterns("cache"))
    with pytest.raises(UserError, match=r"cache' does not hold the teacher that was fine-tuned fr"):
        bench_front(replace(ended, folder=copied), study, **SETTINGS)


def test_without_times_there_are_none(mixed_run: RunRecord, timed: RunRecord) -> None:
    assert read_speeds(mixed_run) == ()
    with pytest.raises(RunError, match="no model on its front yet; there is nothing to time"):
        bench_front(replace(timed, trials=()))
    with pytest.raises(RunError, match=r"'.*00003/model', the model of trial 3, is gone"):
        bench_front(timed, **SETTINGS)
    assert len(read_speeds(timed)) == 6, "what was kept is still there"


def test_a_damaged_model_is_named_as_export_names_it(run: RunRecord, tmp_path: Path) -> None:
    run = replace(run, folder=copytree(run.folder, tmp_path / "run"), trials=run.trials[:2])
    weights = RunFolder(run.folder).model(1) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(
        RunError, match=r"00001': trial 1 is damaged: model/model\.safetensors is .*; put the file"
    ):
        bench_front(run, **SETTINGS)


WITHOUT_REFERENCE = """{"format": "maskfront-bench-2", "reference": "unpruned", "conditions": {},
"worths": [], "timings": [{"model": "other", "median": 1, "engine": "eager", "bits": 32, "bytes": 1,
"batch": 1, "length": 8, "flops_ratio": 1, "speed_up": 1, "trial": null}]}"""


@pytest.mark.parametrize("text", ['{"form', "[]", WITHOUT_REFERENCE])
def test_a_damaged_file_is_named(text: str, tmp_path: Path, make_run: Any) -> None:
    run = make_run(folder=tmp_path)
    RunFolder(tmp_path).bench.write_text(text)
    with pytest.raises(RunError, match=r"bench\.json' is damaged .*; delete it, or write it anew"):
        read_speeds(run)


def test_the_file_of_an_earlier_version_is_named(tmp_path: Path, make_run: Any) -> None:
    RunFolder(tmp_path).bench.write_text('{"format": "maskfront-bench-1", "timings": []}')
    with pytest.raises(
        RunError, match=r"bench\.json' is of another version of maskfront \(maskfront-bench-1, not"
    ):
        read_speeds(make_run(folder=tmp_path))


def test_the_card_of_a_model_says_what_it_is_worth_where_it_serves(timed: RunRecord) -> None:
    card = model_card(timed, timed.trials[1], BERT, plain=False, notes=[])
    speeds = {one.unit: one for one in read_speeds(timed)}
    eager, int8 = speeds[EAGER[0]], speeds[INT8]
    own, full = eager.models[1].milliseconds, eager.reference_model.milliseconds
    assert (
        f"| {EAGER[0]}, {eager.models[1].speed_up:.2f} times as fast | {own:,.3f} | {full:,.3f} |"
    ) in card
    own, full = int8.models[1].megabytes, int8.reference_model.megabytes
    assert f"| MB in onnxruntime-int8 | {own:.1f} | {full:.1f} |" in card
    own, full = worth(int8, 1).heldout_metric, worth(int8, None).heldout_metric
    assert f"| accuracy in onnxruntime-int8, held-out split | {own:.4f} | {full:.4f} |" in card
    assert "ms@" not in model_card(timed, timed.trials[2], BERT, plain=False, notes=[])


def worth(speed: Speed, trial: int | None) -> Worth:
    found = speed.model(trial).worth
    assert found is not None
    return found


def test_the_page_names_the_fastest_engines_and_what_int8_of_the_unpruned_model_beats(
    timed: RunRecord, tmp_path: Path
) -> None:
    """By hand: milliseconds of the file are those of this machine."""
    run = replace(timed, folder=tmp_path, trials=timed.trials[:3])
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    times = {  # of the unpruned model, of trial 1 and of trial 0
        "eager": (10, 8, 9),
        "bfloat16": (5, 2, 6),
        "onnxruntime-int8": (4, 3, 7),
    }
    rows = [row for row in document["timings"] if row["batch"] == 1]
    for row in rows:
        row["median"] = times[row["engine"]][[None, 1, 0].index(row["trial"])]
    RunFolder(tmp_path).bench.write_text(json.dumps({**document, "timings": rows}))
    page = Page(write_report([run], tmp_path / "report.html"))
    assert (
        "At 1 x 4 tokens the fastest engine is onnxruntime-int8 for unpruned 4.00 ms; bfloat16 for "
        "trial 0 6.00 ms, trial 1 2.00 ms."
    ) in page.words
    int8 = {one.engine: one for one in read_speeds(run)}["onnxruntime-int8"]
    metric, own = worth(int8, None).metric, worth(int8, 0).metric
    size = int8.reference_model.megabytes
    float32 = 1 + (metric >= 0.89)  # trial 1 has 0.1
    assert (
        f"At 1 x 4 tokens the unpruned model takes 4.00 ms and {size:.1f} MB in onnxruntime-int8, "
        f"with accuracy {metric:.4f} (held out {worth(int8, None).heldout_metric:.4f}). "
        "Models of the front that it beats, as they are no faster and no better: "
        f"{float32} of 2 in float32, {int(own <= metric)} of 2 in onnxruntime-int8."
    ) in page.words
    assert "Milliseconds are of 1 x 4 tokens." in page.words
    start = page.words[page.words.index("Where to start") :]
    size = {one.engine: one for one in read_speeds(run)}["bfloat16"].models[0].megabytes
    assert f"6.00 ms, {size:.1f} MB in bfloat16, accuracy" in start
    assert "maskfront bench" not in page.words


@pytest.mark.slow
def test_the_page_draws_milliseconds(
    timed: RunRecord, tmp_path: Path, open_tab: Callable[..., Any]
) -> None:
    path = write_report([timed], tmp_path / "report.html")
    page = Page(path)
    assert "1 of the front's models joined it later, and were not timed." in page.words
    speeds = read_speeds(timed)
    _, *traces = page.documents["figure-speed-up"]["data"]
    assert [trace["y"] for trace in traces] == [
        [one.model(number).speed_up for number in (1, 0, None)] for one in speeds
    ]

    tab = open_tab()
    opened = tab.open_whole(path)
    assert opened.locator("#speed-up .scatterlayer .point").count() == 3 * len(speeds) / 2, (
        "one shape"
    )
    units = opened.locator("#axis option").all_inner_texts()
    assert set(EAGER) < set(units)
    assert INT8 not in units, "trials are worth what they are in float32"
    shown = """() => Object.fromEntries(front.data
        .filter((trace) => trace.visible ?? true).map((trace) => [trace.name, trace.x]))"""
    assert not any("int8" in name for name in opened.evaluate(shown))
    opened.select_option("#axis", EAGER[1])
    xs = opened.evaluate(shown)
    assert xs["front"] == [None, *(speeds[1].models[number].milliseconds for number in (1, 0))]
    assert xs["unpruned model"] == [speeds[1].reference_model.milliseconds]
    assert xs["dominated"] == [None]
    int8 = speeds[-1]
    assert int8.unit == INT8
    assert xs["front, onnxruntime-int8"] == [int8.models[n].milliseconds for n in (1, 0)]
    assert xs["unpruned model, onnxruntime-int8"] == [int8.reference_model.milliseconds]
    marks = {trace["name"]: trace for trace in page.documents["figure-front"]["data"]}
    assert marks["unpruned model, onnxruntime-int8"]["y"] == [worth(int8, None).metric]
    assert marks["front, onnxruntime-int8"]["y"] == [worth(int8, n).metric for n in (1, 0)]
    opened.select_option("#axis", "")
    assert not any("int8" in name for name in opened.evaluate(shown))
    opened.click("#front-section button.trial[value='0 1']")
    card = opened.locator("#card").inner_text()
    assert EAGER[0] in card
    assert f"{worth(int8, 1).metric:.4f}" in card
    assert tab.seen == []


def test_runs_share_the_units_that_all_were_timed_in(
    timed: RunRecord, mixed_run: RunRecord, tmp_path: Path
) -> None:
    page = Page(write_report([timed, replace(mixed_run, name="other")], tmp_path / "report.html"))
    assert page.documents["data"]["latencies"] == []
    assert (
        "Milliseconds, megabytes and what int8 costs of other: "
        "maskfront bench runs/tiny --study-file STUDY.py measures"
    ) in page.words
    assert "figure-speed-up" in page.documents


def test_bits_that_no_engine_computes_with_are_size_only(
    make_run: Any, make_trial: Any, tmp_path: Path
) -> None:
    trials = [make_trial(0, 500_000, 0.8), make_trial(1, 400_000, 0.7), make_trial(2, 300_000, 0.6)]
    for place, bits in ((1, 8), (2, 4)):
        result = trials[place].result
        few = replace(result, widths={**result.widths, "weight_bits": (bits, 8)})
        trials[place] = replace(trials[place], result=few)
    run = make_run(trials, folder=tmp_path)

    def timed(engine: str, bits: int) -> Speed:
        model = TimedModel(
            milliseconds=float(bits), megabytes=1.0, flops_ratio=1, speed_up=1, worth=None
        )
        own = {"engine": engine, "bits": bits, "batch": 1, "length": 4, "device": "cpu"}
        reference = {"reference": "unpruned", "reference_model": model, "counted": "bytes"}
        return Speed(**own, **reference, models=dict.fromkeys(range(3), model))  # type: ignore[arg-type]

    both = [timed("eager", 32), timed("onnxruntime-int8", 8)]
    assert without_kernel(run, both[:1]) == {4: [2], 8: [1]}
    assert without_kernel(run, both) == {4: [2]}
    assert [fastest(run, both, n).endswith("; its 4 bits: size only") for n in (0, 1, 2)] == [
        *(False, False, True)
    ]
    section = speed_section(overlay(run), [both])
    assert section is not None
    assert section.sentences[-1] == (
        "No engine that was timed computes with 4 bits: for trial 2 they are size only."
    )


def test_what_is_measured_is_told_from_what_the_study_predicts() -> None:
    own = {
        "engine": "onnxruntime-int8",
        "bits": 8,
        "batch": 1,
        "length": 4,
        "device": "cpu-1threads",
    }
    rest: dict[str, Any] = {
        **own,
        **{"device": "cpu-1threads", "reference": "unpruned", "reference_model": None},
        "models": {},
    }
    unit = "ms@onnxruntime-int8-cpu-1threads-b1-s4"
    assert Speed(**rest, counted="flops@4").unit == unit
    assert Speed(**rest, counted=unit).unit == f"{unit} measured"

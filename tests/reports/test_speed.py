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
from objectives.delivery.timings import Timing
from objectives.engines.names import Engine
from objectives.engines.onnx_model import write_int8, write_onnx
from objectives.errors import UserError
from objectives.measures.bootstrap import Worth
from objectives.measures.evaluate import score
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
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
    bench_front,
    fastest,
    inputs_of,
    keep_speeds,
    read_speeds,
    without_kernel,
)
from tests.conftest import TINY
from tests.reports.conftest import launched_from
from tests.reports.page.test_page import Page

SETTINGS: dict[str, Any] = {"engines": ["eager"], "lengths": [4], "rounds": 2}
EAGER = ["ms@eager-cpu-1threads-b1-s4", "ms@eager-cpu-1threads-b2-s4"]
INT8 = "ms@onnxruntime-int8-cpu-1threads-b2-s4"
ENGINES = ["eager", "bfloat16", "onnxruntime", "onnxruntime-int8"]
FROM_TEXT = ENGINES[2:]


@pytest.fixture(scope="module")
def study(planted_task: Task, tiny_bert: str) -> Study:
    """What the workbench was prepared for."""
    teacher = Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3)
    space = {"target_ratio": FloatDistribution(0.1, 1)}
    return Study(name="tiny", task=planted_task, teacher=teacher, method=MaskSearch(), space=space)


@pytest.fixture(scope="module")
def run(
    problem: Problem,
    study: Study,
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
            BertArchitecture((layer, *[LayerUnits((), ())] * (TINY.layers - 1))),
        )
        model.save_pretrained(folder / "trials" / f"{number:05d}" / "model")
    rows = [(0, 700_000, 0.89), (1, 400_000, 0.1), (2, 500_000, 0.09), (3, 300_000, 0.05)]
    record: RunRecord = make_run([make_trial(*row) for row in rows], folder=folder)
    return launched_from(record, study)


@pytest.fixture(scope="module")
def timed(run: RunRecord, study: Study) -> RunRecord:
    """The run when its first three trials were timed and scored. Model 1 brings its ONNX files."""
    pytest.importorskip("onnxruntime", reason="NOT TESTED: pip install 'maskfront[onnx]'")
    ended = replace(run, trials=run.trials[:3])
    model = RunFolder(run.folder).model(1)
    (model / "onnx").mkdir()
    (model / "classifier.json").write_text("{}")
    write_onnx(load_model(model), model / "onnx" / "model.onnx")
    write_int8(model / "onnx" / "model.onnx", model / "onnx" / "model_int8.onnx")
    settings = {**SETTINGS, "engines": ENGINES}
    keep_speeds(ended, bench_front(ended, study, batches=[1, 2], threads=1, **settings))
    return run


def test_the_front_is_timed_and_kept(timed: RunRecord, workbench: Workbench) -> None:
    speeds = read_speeds(timed)
    assert [one.engine for one in speeds] == [
        name for engines in (FROM_TEXT, ENGINES) for name in engines for _ in range(2)
    ]
    assert [one.texts for one in speeds] == [True] * 4 + [False] * 8, "those of texts first"
    length = round(workbench.select.lengths.mean())
    assert [one.unit for one in speeds[:2]] == [
        f"ms@onnxruntime-cpu-1threads-b{batch}-texts-s{length}" for batch in (1, 8)
    ]
    assert [one.unit for one in speeds[4:6]] == EAGER
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    groups = [document["timings"][start : start + 3] for start in range(0, 36, 3)]
    for speed, rows in zip(speeds, groups, strict=True):
        assert [row["trial"] for row in rows] == [None, 1, 0], "the reference, then by rising cost"
        assert list(speed.models) == [1, 0]
        rivals = [one for one in speeds if one.bits == 32 and one.shape == speed.shape]
        fastest = min(one.reference_model.milliseconds for one in rivals)
        for row in rows:
            model = speed.model(row["trial"])
            assert (model.milliseconds, model.slow) == (row["median"], row["slow"])
            assert row["median"] <= row["slow"]
            assert model.flops_ratio == row["flops_ratio"]
            assert model.megabytes == row["bytes"] / 1e6
            assert model.speed_up == pytest.approx(fastest / row["median"])
            assert (model.worth is None) == (speed.bits == 32), "else it is what its trial says"


def test_text_to_label_is_always_of_one_thread(timed: RunRecord, tmp_path: Path) -> None:
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    document["conditions"]["threads"] = 2
    RunFolder(tmp_path).bench.write_text(json.dumps(document))
    speeds = read_speeds(replace(timed, folder=tmp_path))
    assert {(one.texts, one.device) for one in speeds} == {
        (True, "cpu-1threads"),
        (False, "cpu-2threads"),
    }


def test_fewer_bits_are_scored_on_the_studys_data_and_the_unpruned_model_is_the_teacher(
    timed: RunRecord, study: Study, problem: Problem, workbench: Workbench
) -> None:
    speeds = {one.engine: one for one in read_speeds(timed)}
    int8, bfloat16 = speeds["onnxruntime-int8"], speeds["bfloat16"]
    file = RunFolder(timed.folder).model(1) / "onnx" / "model_int8.onnx"
    scores = score_onnx(file, inputs_of(timed, study))
    assert [worth(int8, 1).metric, worth(int8, 1).heldout_metric] == scores
    low, high = worth(int8, 1).interval
    assert low < worth(int8, 1).metric < high
    cast = copy.deepcopy(problem.teacher).bfloat16()
    expected = score(cast, workbench.select, workbench.metric, "cpu")
    assert worth(bfloat16, None).metric == expected > 0.6, "no twin with random weights"
    assert worth(int8, None).metric == pytest.approx(expected, abs=0.1)
    assert all(one.worth for one in bfloat16.models.values())


def test_another_runs_study_is_named(run: RunRecord, study: Study, tmp_path: Path) -> None:
    ended = replace(run, trials=run.trials[:2])
    other = replace(ended, definition={**run.definition, "task.data": "another"})
    with pytest.raises(
        RunError, match=r"does not have the data of the run '.*timed' \(task.data\); name"
    ):
        bench_front(other, study, **SETTINGS)
    longer = replace(study, task=replace(study.task, max_length=20, truncation="head+tail"))
    with pytest.raises(RunError, match=r"timed' \(task.max_length, task.truncation\); name the st"):
        bench_front(ended, longer, **SETTINGS)
    retrained = replace(run, definition={**run.definition, "teacher.checkpoint": "another"})
    with pytest.raises(RunError, match=r"timed' \(teacher.checkpoint\); name the study file"):
        bench_front(replace(retrained, trials=run.trials[:2]), study, **SETTINGS)
    with pytest.raises(RunError, match=r"its teacher; name no other model \(against=\.\.\.\)$"):
        bench_front(ended, study, against=tmp_path, **SETTINGS)
    copied = copytree(run.folder, tmp_path / "run", ignore=ignore_patterns("cache"))
    with pytest.raises(UserError, match=r"cache' does not hold the teacher that was fine-tuned fr"):
        bench_front(replace(ended, folder=copied), study, **SETTINGS)


def test_without_times_there_are_none(
    mixed_run: RunRecord, timed: RunRecord, tmp_path: Path
) -> None:
    assert read_speeds(mixed_run) == ()
    with pytest.raises(RunError, match="no model on its front yet; there is nothing to time"):
        bench_front(replace(timed, trials=()))
    with pytest.raises(RunError, match=r"'.*00003/model', the model of trial 3, is gone"):
        bench_front(replace(timed, folder=tmp_path), **SETTINGS)
    said: list[str] = []
    bench_front(timed, say=said.append, **SETTINGS)
    assert said[0] == "trial 3 is left out: its model is gone"
    assert len(read_speeds(timed)) == 12, "what was kept is still there"


def test_a_damaged_model_is_named_as_export_names_it(run: RunRecord, tmp_path: Path) -> None:
    run = replace(run, folder=copytree(run.folder, tmp_path / "run"), trials=run.trials[:2])
    weights = RunFolder(run.folder).model(1) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(
        RunError, match=r"00001': trial 1 is damaged: model/model\.safetensors is .*; put the file"
    ):
        bench_front(run, **SETTINGS)


WITHOUT_REFERENCE = """{"format": "maskfront-bench-4", "reference": "unpruned", "conditions": {},
"timings": [{"model": "other", "quartiles": [1, 1, 1], "slow": 1, "engine": "eager", "bits": 32,
"bytes": 1, "batch": 1, "length": 8, "flops": 1, "trial": null
}]}"""


@pytest.mark.parametrize("text", ['{"form', "[]", WITHOUT_REFERENCE])
def test_a_damaged_file_is_named(text: str, tmp_path: Path, make_run: Any) -> None:
    run = make_run(folder=tmp_path)
    RunFolder(tmp_path).bench.write_text(text)
    with pytest.raises(RunError, match=r"bench\.json' is damaged .*; delete it, or write it again"):
        read_speeds(run)


def test_the_file_of_an_earlier_version_is_named(tmp_path: Path, make_run: Any) -> None:
    RunFolder(tmp_path).bench.write_text('{"format": "maskfront-bench-2", "timings": []}')
    with pytest.raises(
        RunError, match=r"bench\.json' is of another version of maskfront \(maskfront-bench-2, not"
    ):
        read_speeds(make_run(folder=tmp_path))


def test_the_card_of_a_model_says_what_it_is_worth_where_it_serves(timed: RunRecord) -> None:
    card = model_card(timed, timed.trials[1], BERT, plain=False, notes=[])
    speeds = {one.unit: one for one in read_speeds(timed)}
    text, eager, int8 = next(iter(speeds.values())), speeds[EAGER[0]], speeds[INT8]
    own, full = text.models[1], text.reference_model
    name = f"| text to label, {text.unit}"
    rows = [
        f"{name}, {own.speed_up:.2f} times as fast "
        f"| {own.milliseconds:,.3f} | {full.milliseconds:,.3f} |\n",
        f"{name}, 95th percentile | {own.slow:,.3f} | {full.slow:,.3f} |\n",
    ]
    own, full = eager.models[1], eager.reference_model
    rows.append(f"| {EAGER[0]} | {own.milliseconds:,.3f} | {full.milliseconds:,.3f} |\n")
    assert "".join(rows[:2]) in card
    assert card.index(rows[0]) < card.index(rows[2])
    own, full = int8.models[1], int8.reference_model
    assert f"| MB in onnxruntime-int8 | {own.megabytes:.1f} | {full.megabytes:.1f} |" in card
    scores = [f"{worth(int8, trial).heldout_metric:.4f}" for trial in (1, None)]
    assert f"| accuracy in onnxruntime-int8, held-out split | {' | '.join(scores)} |" in card
    assert "ms@" not in model_card(timed, timed.trials[2], BERT, plain=False, notes=[])
    new = replace(timed, unpruned=replace(timed.unpruned, student_is_new=True))
    card = model_card(new, new.trials[1], BERT, plain=False, notes=[])
    assert f"| {EAGER[0]} |" in card
    assert "times as fast |" not in card, "as another model than the one of the column"


def test_without_texts_a_card_has_fixed_lengths(timed: RunRecord, tmp_path: Path) -> None:
    run = of_tokens_in_eager(timed, tmp_path)
    card = model_card(run, run.trials[1], BERT, plain=False, notes=[])
    speed = next(one for one in read_speeds(run) if one.unit == EAGER[0])
    assert f"| {EAGER[0]}, {speed.models[1].speed_up:.2f} times as fast |" in card
    assert "| text to label" not in card


def of_tokens_in_eager(timed: RunRecord, folder: Path) -> RunRecord:
    """The run as it would be without the other times."""
    document = json.loads(RunFolder(timed.folder).bench.read_text())
    document["timings"] = [row for row in document["timings"] if row["engine"] == "eager"]
    RunFolder(folder).bench.write_text(json.dumps(document))
    return replace(timed, name="other", folder=folder)


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
        ("eager", False): (10, 8, 9),
        ("bfloat16", False): (5, 2, 6),
        ("onnxruntime", False): (11, 8, 9),
        ("onnxruntime-int8", False): (4, 3, 7),
        ("onnxruntime", True): (1, 0.9, 0.8),
        ("onnxruntime-int8", True): (0.7, 0.4, 0.5),
    }
    rows = [row for row in document["timings"] if row["batch"] == 1]
    for row in rows:
        own = times[row["engine"], row["texts"]]
        median = own[[None, 1, 0].index(row["trial"])]
        row |= {"quartiles": [median] * 3, "slow": 2 * median}
    RunFolder(tmp_path).bench.write_text(json.dumps({**document, "timings": rows}))
    page = Page(write_report([run], tmp_path / "report.html"))
    of_texts = (
        "1 x text to label: the fastest engine is onnxruntime-int8 for unpruned 0.70 ms, trial 0 "
        "0.50 ms, trial 1 0.40 ms."
    )
    of_tokens = (
        "1 x 4 tokens: the fastest engine is onnxruntime-int8 for unpruned 4.00 ms; bfloat16 for "
        "trial 0 6.00 ms, trial 1 2.00 ms."
    )
    assert 0 < page.words.index(of_texts) < page.words.index(of_tokens)
    assert "From text to label, tokenisation included. How many times as fast each" in page.words
    int8 = {one.engine: one for one in read_speeds(run)}["onnxruntime-int8"]
    metric, own = worth(int8, None).metric, worth(int8, 0).metric
    size = int8.reference_model.megabytes
    float32 = 1 + (metric >= 0.89)  # trial 1 has 0.1
    assert (
        f"1 x 4 tokens: the unpruned model takes 4.00 ms and {size:.1f} MB in onnxruntime-int8, "
        f"with accuracy {metric:.4f} (held out {worth(int8, None).heldout_metric:.4f}). "
        "It beats these models of the front, which are no faster and no better: "
        f"{float32} of 2 in float32, {int(own <= metric)} of 2 in onnxruntime-int8."
    ) in page.words
    assert "Milliseconds are for 1 x text to label." in page.words
    start = page.words[page.words.index("Where to start") :]
    size = int8.models[0].megabytes
    assert f"0.50 ms (95% within 1.00), {size:.1f} MB in onnxruntime-int8, accuracy" in start
    assert "maskfront bench" not in page.words
    file = RunFolder(tmp_path).bench
    file.write_text(file.read_text().replace('"unpruned"', '"runs/a/model"'))
    page = Page(write_report([run], tmp_path / "report.html"))
    assert "the unpruned model takes" not in page.words, "another model was timed"


@pytest.mark.slow
def test_the_page_draws_milliseconds(
    timed: RunRecord, tmp_path: Path, open_tab: Callable[..., Any]
) -> None:
    path = write_report([timed], tmp_path / "report.html")
    page = Page(path)
    assert "1 of the front's models were not timed: they joined it later." in page.words
    every = read_speeds(timed)
    _, *traces = page.documents["figure-speed-up"]["data"]
    assert [trace["name"] for trace in traces] == [
        f"{engine}, {batch} x text to label" for engine in FROM_TEXT for batch in (1, 8)
    ], "no times of fixed lengths beside them"
    assert [trace["y"] for trace in traces] == [
        [one.model(number).speed_up for number in (1, 0, None)] for one in every if one.texts
    ]
    speeds = {one.unit: one for one in every}

    tab = open_tab()
    opened = tab.open_whole(path)
    assert opened.locator("#speed-up .scatterlayer .point").count() == 3 * 2, "one shape"
    options = opened.locator("#axis option")
    assert "ms@" not in " ".join(options.all_inner_texts())
    units = options.evaluate_all("(all) => all.map((option) => option.value)")
    assert units.index(every[0].unit) < units.index(EAGER[0])
    assert set(EAGER) < set(units)
    assert INT8 not in units, "trials are worth what they are in float32"
    shown = """() => Object.fromEntries(front.data
        .filter((trace) => trace.visible ?? true).map((trace) => [trace.name, trace.x]))"""
    assert not any("int8" in name for name in opened.evaluate(shown))
    opened.select_option("#axis", EAGER[1])
    xs = opened.evaluate(shown)
    eager, int8 = speeds[EAGER[1]], speeds[INT8]
    assert xs["front"] == [None, *(eager.models[number].milliseconds for number in (1, 0))]
    assert xs["unpruned model"] == [eager.reference_model.milliseconds]
    assert xs["dominated"] == [None]
    assert xs["front, onnxruntime-int8"] == [int8.models[n].milliseconds for n in (1, 0)]
    assert xs["unpruned model, onnxruntime-int8"] == [int8.reference_model.milliseconds]
    marks = {trace["name"]: trace for trace in page.documents["figure-front"]["data"]}
    assert marks["unpruned model, onnxruntime-int8"]["y"] == [worth(int8, None).metric]
    assert marks["front, onnxruntime-int8"]["y"] == [worth(int8, n).metric for n in (1, 0)]
    opened.select_option("#axis", "")
    assert not any("int8" in name for name in opened.evaluate(shown))
    opened.click("#front-section button.trial[value='0 1']")
    card = opened.locator("#card").inner_text()
    assert speeds[EAGER[0]].unit_text in card
    assert speeds[EAGER[0]].unit_text == "ms in eager, 1 x 4 tokens (cpu, 1 thread)"
    assert f"{worth(int8, 1).metric:.4f}" in card
    assert tab.seen == []


def test_runs_share_the_units_that_all_were_timed_in(
    timed: RunRecord, mixed_run: RunRecord, tmp_path: Path
) -> None:
    page = Page(write_report([timed, replace(mixed_run, name="other")], tmp_path / "report.html"))
    assert page.documents["data"]["latencies"] == []
    assert (
        "Milliseconds, megabytes and the loss of int8 for the front and the unpruned model of "
        "other, which the next report shows: maskfront bench runs/tiny --study-file STUDY.py"
    ) in page.words
    assert "figure-speed-up" in page.documents


def test_a_run_without_texts_stands_apart_from_one_with(timed: RunRecord, tmp_path: Path) -> None:
    other = of_tokens_in_eager(timed, tmp_path)
    page = Page(write_report([timed, other], tmp_path / "report.html"))
    assert page.documents["data"]["latencies"] == EAGER
    start, _ = page.words[page.words.index("Where to start") :].split(": models on the front", 1)
    assert "in onnxruntime" in start
    assert "in eager" not in start
    assert "Milliseconds are for 1 x text to label." in start


def test_bits_of_no_engine_are_size_only(make_run: Any, make_trial: Any, tmp_path: Path) -> None:
    rows = [(500_000, 0.8, 32), (400_000, 0.7, 8), (300_000, 0.6, 4)]
    trials = [
        make_trial(number, flops, metric, widths={"weight_bits": (bits, 32)})
        for number, (flops, metric, bits) in enumerate(rows)
    ]
    run = make_run(trials, folder=tmp_path)

    def timed(engine: Engine, bits: int) -> Speed:
        model = Timing(
            model="unpruned",
            engine=engine,
            bits=bits,
            bytes=10**6,
            batch=1,
            length=4,
            flops=1,
            quartiles=(float(bits),) * 3,
            slow=9,
        )
        own: dict[str, Any] = {"engine": engine, "bits": bits, "batch": 1, "length": 4}
        reference: dict[str, Any] = {"reference": "unpruned", "reference_model": model}
        models = dict.fromkeys(range(3), model)
        return Speed(**own, **reference, texts=False, device="cpu", counted="bytes", models=models)

    both = [timed("eager", 32), timed("onnxruntime-int8", 8)]
    assert without_kernel(run, both[:1]) == {4: [2], 8: [1]}
    assert without_kernel(run, both) == {4: [2]}
    assert [fastest(run, both, n).endswith("; its 4 bits: size only") for n in (0, 1, 2)] == [
        *(False, False, True)
    ]
    worth = Worth(0.9, (0.8, 1.0), 0.9, (0.8, 1.0))
    served = replace(both[0], models={0: replace(both[0].models[0], worth=worth)})
    scored_by_int8 = replace(run, metric_name="accuracy in onnxruntime-int8")
    assert "in eager, accuracy 0.9000" in fastest(scored_by_int8, [served], 0)
    assert speed_section(overlay(run), [[replace(one, models={}) for one in both]]) is None
    section = speed_section(overlay(run), [both])
    assert section is not None
    assert section.sentences[-1] == (
        "No timed engine computes with 4 bits: for trial 2 they save size only."
    )


def test_what_is_measured_is_told_from_what_the_study_predicts() -> None:
    rest: dict[str, Any] = {
        **{"engine": "onnxruntime-int8", "bits": 8, "batch": 1, "length": 4, "texts": False},
        **{"device": "cpu-1threads", "reference": "unpruned", "reference_model": None},
        "models": {},
    }
    unit = "ms@onnxruntime-int8-cpu-1threads-b1-s4"
    assert Speed(**rest, counted="flops@4").unit == unit
    assert Speed(**rest, counted=unit).unit == f"{unit} measured"

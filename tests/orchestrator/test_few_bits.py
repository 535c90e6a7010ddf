"""A study of bytes, over structure, bits and vocabulary: from its launch to models that load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from maskfront import Run, Study, launch
from objectives.delivery.bench import OfRun, bench
from objectives.engines import onnx_model
from objectives.engines.serving import check_engine
from objectives.errors import UserError
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import dense
from objectives.text.vocabulary import Vocabulary
from orchestrator.study_file import load_study
from reports.speed import bench_front, inputs_of, keep_speeds, read_speeds

QUIET = Console(quiet=True)
KNOBS = {"weight_bits": 4, "embedding_bits": 8, "vocabulary": 0.9}


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    plain = load_study(tiny_study_file)
    return replace(
        plain,
        cost="bytes",
        method=replace(plain.method, input_bits=8),  # type: ignore[type-var]
        space={
            "target_ratio": FloatDistribution(0.3, 0.9),
            "weight_bits": CategoricalDistribution([32, 8, 4]),
            "embedding_bits": CategoricalDistribution([32, 8]),
            "vocabulary": FloatDistribution(0.6, 1.0),
        },
        first=(
            {"target_ratio": 0.7, "weight_bits": 32, "embedding_bits": 32, "vocabulary": 1.0},
            {"target_ratio": 0.7, **KNOBS},
        ),
        trials=3,
    )


@pytest.fixture(scope="module")
def run(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(study, out=tmp_path_factory.mktemp("runs") / "run", device="cpu", console=QUIET)


def test_bytes_are_those_of_the_files(run: Run) -> None:
    whole, small, *_ = (trial.result for trial in run.finished)
    assert len(run.finished) == 3
    for trial in run.finished:
        file = run.folder / "trials" / f"{trial.number:05d}" / "model" / "model.safetensors"
        assert trial.result.cost == trial.result.bytes == file.stat().st_size
        assert trial.result.unit == "bytes"
    assert whole.flops == small.flops
    assert small.cost < 0.5 * whole.cost
    assert small.params < whole.params
    assert run.unpruned.ratio == 1


def test_the_target_is_one_of_flops(run: Run, tmp_path: Path) -> None:
    for trial in run.finished:
        result = trial.result
        assert result.target_ratio == trial.knobs["target_ratio"]
        assert result.budget_name == "FLOPs"
        assert result.reached == result.flops / result.flops_full != result.ratio
        assert abs(result.reached - result.target_ratio) <= result.tolerance * result.target_ratio
        assert trial.feasible
    assert min(trial.result.cost for trial in run.finished) == run.front[0].result.cost
    page = run.report(tmp_path / "report.html").read_text()
    assert "FLOPs of each cut model as a share" in page
    assert "if its FLOPs ratio differs from the target" in " ".join(page.split())


def test_an_exported_model_has_its_bits_and_its_words(run: Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "model", trial=1).folder
    model = AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert isinstance(model, PrunedBertForSequenceClassification)
    assert len(tokenizer) == model.config.vocab_size == round(0.9 * 48)
    assert {layer.weight_bits for layer in model.config.of_layers()} == {4}
    card = (out / "README.md").read_text()
    assert "| weight_bits | 4 |" in card
    assert f"| bytes | {run.finished[1].result.bytes:,} |" in card
    inputs = tokenizer(["bab joy fel", "grief"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
        near = dense(model)(**inputs).logits  # but for inputs that are not rounded
    torch.testing.assert_close(logits, near, atol=0.3, rtol=0)


def test_bench_runs_and_scores_it_in_its_own_tokens(run: Run, study: Study) -> None:
    engines = ("eager", "bfloat16")
    own = {"batches": [1], "lengths": [8], "rounds": 1, "engines": engines}
    timed = bench_front(run, study, **own)
    assert not timed.skipped
    scores = {Path(t.model).parent.name: t.worth.metric for t in timed.timings if t.worth}
    for trial in run.front:
        assert abs(scores[f"{trial.number:05d}"] - trial.result.metric) < 0.15


@pytest.mark.slow
def test_onnx_says_that_it_rounds_no_inputs(run: Run, study: Study, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    whole, small = (run.export(tmp_path / str(n), trial=n, onnx=True).notes[0] for n in (0, 1))
    assert "because ONNX does not round what enters the weights" in small
    assert "because" not in whole
    own = {"batches": [1], "lengths": [8], "rounds": 1, "engines": ("onnxruntime",)}
    timings = bench_front(run, study, **own).timings
    scored = {Path(timing.model).parent.name for timing in timings if timing.worth}
    few = {f"{t.number:05d}" for t in run.front if t.knobs["weight_bits"] != 32}
    assert scored == few != set()


def test_the_twin_of_a_model_of_few_words_has_all(run: Run) -> None:
    own = {"batches": [1], "lengths": [8], "rounds": 1, "engines": ("eager",)}
    models = [run.folder / "trials" / f"{number:05d}" / "model" for number in (1, 0)]
    assert run.unpruned.bytes is not None
    for folders in (models, models[:1]):
        twin = bench(folders, **own).timings[0]  # type: ignore[arg-type]
        assert twin.model == "unpruned"
        assert 0 < run.unpruned.bytes - twin.bytes < 20_000, "but for the header"


def test_a_model_is_scored_in_its_own_tokens(run: Run, study: Study, tmp_path: Path) -> None:
    """Of a twin whose words have each other's numbers."""
    folder = run.folder / "trials" / "00000" / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    inputs = inputs_of(run, study)
    words = len(inputs.tokenizer)
    order = [*range(5), *range(words - 1, 4, -1)]  # special tokens first

    class Turned(Vocabulary):
        def kept(self, count: int) -> list[int]:
            return order[:count]

    other = Turned(inputs.tokenizer, inputs.split("alpha")).tokenizer_of(words)
    embeddings = model.get_input_embeddings().weight
    embeddings.data = embeddings.data[order]
    model.save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    timed = bench(
        [folder, tmp_path],
        of_run=OfRun(data=inputs),
        batches=[1],
        lengths=[8],
        rounds=1,
        engines=("bfloat16",),
    )
    first, second = (timing.worth for timing in timed.timings if timing.worth)
    assert first == second is not None
    assert first.metric == pytest.approx(run.finished[0].result.metric, abs=0.05)


def test_a_vocabulary_that_cannot_spell_is_refused_at_once(study: Study, tmp_path: Path) -> None:
    tight = replace(study, space={**study.space, "vocabulary": FloatDistribution(0.01, 1.0)})
    with pytest.raises(UserError, match=r"vocabulary is 0\.01, or 0 pieces, but special tokens"):
        launch(tight, out=tmp_path / "run", device="cpu", console=QUIET)
    assert not (tmp_path / "run" / "study.db").exists()


def test_an_engine_of_few_bits_is_studied_by_its_metric(study: Study, tmp_path: Path) -> None:
    served = replace(
        study,
        cost="latency",
        engine="bfloat16",
        space={"target_ratio": FloatDistribution(0.3, 0.9)},
        # On a busy machine a table of milliseconds may say that less is out of reach.
        first=({"target_ratio": 0.9},),
        trials=1,
    )
    run = launch(served, out=tmp_path / "run", device="cpu", console=QUIET)
    assert run.metric_name == "accuracy in bfloat16"
    assert (run.bits, run.definition["engine"]) == (16, "bfloat16")
    unit = run.unpruned.unit
    assert unit.startswith("ms@bfloat16-cpu-")
    assert unit.endswith("threads-b1-s16")
    (trial,) = run.finished
    assert trial.result.cost_full == run.unpruned.cost > trial.result.cost > 0
    timed = bench_front(
        run, served, batches=[1], lengths=[16], rounds=1, engines=("eager", "bfloat16")
    )
    assert {t.engine for t in timed.timings if t.worth} == {"eager"}, (
        "the other is what its trial says"
    )
    keep_speeds(run, timed)
    assert [one.unit for one in read_speeds(run)] == [
        unit.replace("bfloat16", "eager"),
        f"{unit} measured",
    ]
    page = run.report(tmp_path / "report.html").read_text()
    assert "accuracy in bfloat16" in page
    assert f'<option value="{unit}">' in page
    assert f'<option value="{unit} measured">' in page
    assert f'<option value="{unit.replace("bfloat16", "eager")}">' not in page


def test_an_engine_that_does_not_run_here_is_refused_before_anything_is_read(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = replace(study, cost="latency", engine="onnxruntime-int8")
    monkeypatch.setattr(onnx_model, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"onnx, onnxscript, onnxruntime are not installed"):
        launch(served, out=tmp_path / "run", device="cpu", console=QUIET)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"-int8' only runs on the CPU, not on 'cuda:1'; use a"):
        check_engine("onnxruntime-int8", "cuda:1")
    check_engine("compile", "cuda:1")

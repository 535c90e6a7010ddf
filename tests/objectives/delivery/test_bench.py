"""Whole models side by side: what is timed, against what, and what is said where one cannot be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AlbertConfig, AlbertForSequenceClassification, BertTokenizer

from objectives.delivery import bench as benches
from objectives.delivery.bench import UNPRUNED, Bench, OfRun, bench
from objectives.delivery.deployed import text_to_label
from objectives.delivery.exported import load_model
from objectives.engines import onnx_model, serving
from objectives.engines.names import BITS, ENGINES, Engine, check_engines
from objectives.engines.onnx_model import write_int8, write_onnx
from objectives.errors import UserError
from objectives.measures.cost import Flops
from objectives.measures.evaluate import count_parameters
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.text.task import Task
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher import Teacher
from tests.bert_variants import write_variant
from tests.conftest import SPECIAL, TINY
from tests.objectives.conformance import random_states

if TYPE_CHECKING:
    from objectives.delivery.classify import Classifier

RAGGED = BertArchitecture(
    (
        LayerUnits((0, 2), (1, 5, 40), query_key=((0, 3), (1, 2)), query_inputs=(0, 9)),
        LayerUnits((), ()),
        LayerUnits((), (), dropped=True),
    )
)


@pytest.fixture(scope="module")
def folders(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A ragged model, and the teacher that it was cut from."""
    root = tmp_path_factory.mktemp("models")
    cut(problem.student.state_dict(), problem.student.config, RAGGED).save_pretrained(root / "cut")
    problem.teacher.save_pretrained(root / "teacher")
    return [root / "cut", root / "teacher"]


@pytest.fixture(scope="module")
def with_files(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ragged model with its ONNX files, one of another size than `bench` would write."""
    onnx = pytest.importorskip("onnx", reason="NOT TESTED: pip install 'maskfront[onnx]'")
    model = shutil.copytree(folders[0], tmp_path_factory.mktemp("exported") / "model")
    (model / "onnx").mkdir()
    whole, small = model / "onnx" / "model.onnx", model / "onnx" / "model_int8.onnx"
    write_onnx(load_model(model), whole)
    write_int8(whole, small)
    mine = onnx.load(small)
    mine.doc_string = "of another size than one that the bench would make"
    onnx.save(mine, small)
    (model / "classifier.json").touch()  # as `export --onnx` writes beside them
    return model


def shapes(timed: Bench) -> list[tuple[str, str, int, int]]:
    return [(Path(t.model).name, t.engine, t.batch, t.length) for t in timed.timings]


@pytest.mark.slow
def test_every_model_is_timed_in_every_engine_on_every_shape(with_files: Path) -> None:
    """onnxruntime runs the files that a folder brings, and makes those of the unpruned twin."""
    model = with_files
    before, told = random_states(), []
    engines = tuple(engine for engine in ENGINES if engine != "compile")
    timed = bench([model], batches=(1, 2), lengths=(4,), engines=engines, rounds=2, say=told.append)
    assert random_states() == before
    assert not timed.skipped
    assert timed.reference == UNPRUNED
    assert shapes(timed) == [
        (name, engine, batch, 4)
        for engine in engines
        for batch in (1, 2)
        for name in (UNPRUNED, "model")
    ]
    cost = Flops(TINY, 4)
    for timing in timed.timings:
        low, middle, high = timing.quartiles
        assert 0 < low <= middle <= high <= timing.slow
        assert not timing.texts, "there is no task"
        assert timing.bits == BITS[timing.engine]
        assert timing.flops == (cost.full if timing.model == UNPRUNED else cost.exact(RAGGED))
    bytes_of = {timing.engine: timing.bytes for timing in timed.timings if timing.model != UNPRUNED}
    header = (model / "model.safetensors").stat().st_size - bytes_of["eager"]
    assert 0 < header < 20_000
    assert bytes_of["bfloat16"] == bytes_of["eager"] - 2 * count_parameters(load_model(model))
    files = {"onnxruntime": "model.onnx", "onnxruntime-int8": "model_int8.onnx"}
    assert {name: bytes_of[name] for name in files} == {
        name: (model / "onnx" / file).stat().st_size for name, file in files.items()
    }, "the files of the folder"
    assert told[0] == "eager: preparing 2 models"
    assert timed.conditions["rounds"] == 2


@pytest.fixture(scope="module")
def data(planted_task: Task, tiny_bert: str) -> Inputs:
    return read_inputs(planted_task, Teacher(checkpoint=tiny_bert))


@pytest.mark.slow
def test_models_are_timed_from_text_to_label_by_their_own_files_and_tokenizers(
    with_files: Path, data: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(with_files, tmp_path / "other")
    words = [*SPECIAL, "joy", "bab"]  # fewer, and so with other numbers
    BertTokenizer(vocab={word: place for place, word in enumerate(words)}).save_pretrained(other)
    seen: list[list[Classifier]] = []
    texts: list[list[str]] = []

    def spied(classifiers: list[Classifier], own: list[str], **settings: Any) -> Any:
        seen.append(classifiers)
        texts.append(own)
        return text_to_label(classifiers, own, **settings)

    def written(*_: object) -> None:
        raise AssertionError("written twice")

    monkeypatch.setattr(benches, "text_to_label", spied)
    monkeypatch.setattr(serving, "write_onnx", written)
    monkeypatch.setattr(serving, "_FEWER", {"onnxruntime-int8": ("model_int8.onnx", written)})
    settings: dict[str, Any] = {"batches": [1], "lengths": [4], "rounds": 1}
    engines = ("eager", "onnxruntime", "onnxruntime-int8")
    told: list[str] = []
    timed = bench(
        [other],
        against=with_files,
        of_run=OfRun(data=data, bits=8),  # scored in float32, which costs little
        engines=engines,
        say=told.append,
        **settings,
    )
    assert not timed.skipped
    assert [(t.engine, t.texts, t.batch, Path(t.model).name) for t in timed.timings] == [
        (engine, texts, batch, name)
        for texts in (True, False)
        for engine in engines[texts:]
        for batch in ((1, 8) if texts else (1,))
        for name in ("model", "other")
    ], "torch has no times from text to label"
    assert texts[:2] == [[row for (row,) in data.text.roles["select"].texts]] * 2
    length = round(data.split("select").lengths.mean())
    cost = Flops(TINY, length).exact(RAGGED)
    for timing in timed.timings:
        if timing.texts:
            assert (timing.length, timing.flops) == (length, cost)
            assert 0 < timing.quartiles[1] <= timing.slow
            assert timing.bytes == next(
                one.bytes
                for one in timed.timings
                if (one.engine, one.texts) == (timing.engine, False)
            )
    for classifiers in seen:
        ids = [one.stages[0].tokenizer.encode("bab joy bab").ids for one in classifiers]
        known = data.tokenizer("bab joy bab")["input_ids"]
        assert ids == [known, [2, 6, 5, 6, 3]]
    assert "onnxruntime: text to label, batch 8: round 1 of 3" in told

    monkeypatch.setattr(type(data.tokenizer), "is_fast", property(lambda _: False))
    timed = bench(
        [with_files],
        against=other,
        of_run=OfRun(data=data),
        engines=engines[1:2],
        say=told.append,
        **settings,
    )
    assert {one.texts for one in timed.timings} == {False}
    assert "no times from text, " in told[-1]


def test_the_reference_is_the_one_that_is_named(folders: list[Path]) -> None:
    own = {"batches": [1], "lengths": [4], "engines": ["eager"], "rounds": 1}
    timed = bench(folders[:1], against=folders[1], **own)
    assert timed.reference == str(folders[1])
    assert [Path(t.model).name for t in timed.timings] == ["teacher", "cut"]
    alone = bench(folders[1:], **own)
    assert alone.reference == str(folders[1]), "from which nothing was cut"
    assert [Path(t.model).name for t in alone.timings] == ["teacher"]


@pytest.mark.slow
def test_a_folder_that_is_called_unpruned_is_a_model_as_any_other(
    with_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(with_files, tmp_path / "unpruned")
    settings = {"batches": [1], "lengths": [4], "engines": ["onnxruntime"], "rounds": 1}
    timed = bench([Path("unpruned")], **settings)
    assert timed.reference == UNPRUNED
    assert [timing.model for timing in timed.timings] == [UNPRUNED, "./unpruned"]
    twin, model = (timing.bytes for timing in timed.timings)
    assert model == (with_files / "onnx" / "model.onnx").stat().st_size < twin
    (tmp_path / "unpruned" / "classifier.json").unlink()
    (tmp_path / "unpruned" / "onnx" / "model.onnx").write_bytes(b"of another program")
    timed = bench([Path("unpruned")], **settings)
    assert not timed.skipped, "a file that maskfront has not written is not read"


@pytest.mark.slow
def test_more_models_are_compiled_than_torch_has_room_for_by_default(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 8 variants of one code object torch would run the rest eagerly, and say nothing."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    copies = [tmp_path / str(number) for number in range(8)]  # nine with the twin
    empty = BertArchitecture((LayerUnits((), ()),) * TINY.layers)
    for copy in copies:
        cut(problem.student.state_dict(), problem.student.config, empty).save_pretrained(copy)
    timed = bench(copies, batches=[1], lengths=[4, 5], engines=("compile",), rounds=1)
    assert not timed.skipped
    assert len(timed.timings) == 2 * (1 + len(copies))


def test_an_engine_that_fails_is_skipped_with_its_reason(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: object, **__: object) -> Any:
        raise RuntimeError("no working C++ compiler\nand a long story")

    monkeypatch.setattr(torch, "compile", no_compiler)
    timed = bench(folders, batches=[1], lengths=[4], engines=("compile", "eager"), rounds=1)
    assert timed.skipped == {"compile": "no working C++ compiler"}
    assert {t.engine for t in timed.timings} == {"eager"}
    with pytest.raises(UserError, match=r"no engine runs here \(compile: no working C\+\+ comp"):
        bench(folders, batches=[1], lengths=[4], engines=("compile",), rounds=1)


def test_an_engine_that_is_not_installed_or_not_for_this_device_is_skipped(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_model, "find_spec", lambda name: None)
    engines: Any = ("eager", "onnxruntime")
    timed = bench(folders[:1], batches=[1], lengths=[4], engines=engines, rounds=1)
    assert timed.skipped == {
        "onnxruntime": "onnx, onnxscript, onnxruntime are not installed; install the extra: "
        "pip install -c constraints.txt -e '.[onnx]'"
    }
    with pytest.raises(UserError, match="-int8' only runs on the CPU, not on 'meta'; use"):
        bench(folders[:1], batches=[1], lengths=[4], engines=["onnxruntime-int8"], device="meta")


def test_bad_settings_are_refused(folders: list[Path], tmp_path: Path) -> None:
    for settings, message in (
        ({"batches": [0]}, "batch is 0; it must be at least 1"),
        ({"lengths": [65]}, "length is 65; these models take 1 to 64 tokens"),
        ({"rounds": 0}, "rounds is 0"),
        ({"threads": -1}, "threads is -1"),
    ):
        with pytest.raises(UserError, match=message):
            bench(folders, engines=("eager",), **settings)
    with pytest.raises(UserError, match="nothing': there is no such folder of a model"):
        bench([tmp_path / "nothing"])
    with pytest.raises(UserError, match=r"': no config\.json in the folder; name"):
        bench([tmp_path])
    with pytest.raises(
        UserError, match="no engine 'tpu'; there are eager, bfloat16, compile, onnxr"
    ):
        check_engines(["tpu"])
    assert check_engines(None) == ENGINES
    assert check_engines(["onnxruntime"]) == ("onnxruntime",)


def test_a_model_that_brings_code_is_not_run(folders: list[Path], tmp_path: Path) -> None:
    """Of a folder that is no cut model's, nothing is executed."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    (tmp_path / "config.json").write_text(
        '{"model_type": "evil", "auto_map": {"AutoConfig": "evil.C",'
        ' "AutoModelForSequenceClassification": "evil.M"}}'
    )
    with pytest.raises(
        UserError, match=r"its config\.json cannot be read \(The repo.* contains custom code"
    ):
        load_model(tmp_path)


def test_the_reference_has_the_layers_that_the_study_left_out(folders: list[Path]) -> None:
    settings = {"batches": [1], "lengths": [4], "engines": ("eager",), "rounds": 1}
    timed = bench(folders[:1], of_run=OfRun(layers=6), **settings)  # type: ignore[arg-type]
    assert timed.timings[0].flops == Flops(replace(TINY, layers=6), 4).full


@pytest.mark.parametrize("kind", ["distilbert", "electra", "electra-wide", "roberta", "mpnet"])
def test_berts_kin_is_timed_as_a_bert(folders: list[Path], tmp_path: Path, kind: str) -> None:
    assert_timed(kind, "eager", folders[0], tmp_path)


@pytest.mark.slow
def test_onnxruntime_runs_a_reference_of_berts_kin(with_files: Path, tmp_path: Path) -> None:
    """That which differs most from BERT: projected embeddings, another pooler."""
    assert_timed("electra", "onnxruntime", with_files, tmp_path)


def assert_timed(kind: str, engine: Engine, model: Path, folder: Path) -> None:
    kin = Path(write_variant(kind, folder / kind, ["happy", "neutral", "sad"]))
    timed = bench([model], against=kin, batches=[1], lengths=[4], engines=(engine,), rounds=1)
    assert not timed.skipped
    assert [Path(t.model).name for t in timed.timings] == [kind, model.name]
    differs = {"electra": {"embedding": 12}, "mpnet": {"buckets": 32}}.get(kind, {})
    assert timed.timings[0].flops == Flops(replace(TINY, **differs), 4).full


def test_a_model_that_is_no_kin_of_berts_is_refused(folders: list[Path], tmp_path: Path) -> None:
    config = AlbertConfig(
        vocab_size=9, embedding_size=4, hidden_size=4, num_attention_heads=1, intermediate_size=4
    )
    with torch.random.fork_rng():
        AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="it is of the kind 'albert'; maskfront has models"):
        bench(folders[:1], against=tmp_path)

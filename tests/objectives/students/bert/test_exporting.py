"""When a cut model is a plain BERT, and what is written if it is not."""

import json
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    pipeline,
)

from objectives.delivery.exported import write_model
from objectives.engines import onnx_model
from objectives.errors import UserError
from objectives.measures.evaluate import predict
from objectives.problem import Problem
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.students.bert.exporting import plain_bert, save_in, save_model, save_tokenizer
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification as Pruned
from tests.conftest import TINY
from tests.objectives.conformance import random_states

HEADS = tuple(range(TINY.heads))


@given(
    ffn=st.integers(1, TINY.ffn).flatmap(
        lambda size: st.tuples(
            *[st.sets(st.integers(0, TINY.ffn - 1), min_size=size, max_size=size)] * TINY.layers
        )
    )
)
def test_layers_of_one_ffn_width_and_whole_heads_are_a_plain_bert(
    problem: Problem, ffn: tuple[set[int], ...]
) -> None:
    layers = tuple(LayerUnits(HEADS, tuple(sorted(neurons))) for neurons in ffn)
    model = cut(problem.student.state_dict(), problem.student.config, BertArchitecture(layers))
    plain = plain_bert(model)
    assert type(plain) is BertForSequenceClassification
    assert not plain.training
    assert plain.config.id2label == model.config.id2label
    logits = predict(plain, problem.alpha, "cpu"), predict(model, problem.alpha, "cpu")
    torch.testing.assert_close(*logits, atol=1e-5, rtol=0)


def test_layers_that_are_dropped_are_no_layers_of_a_plain_bert(problem: Problem) -> None:
    layers = (
        LayerUnits(HEADS, (3, 4)),
        LayerUnits((), (), dropped=True),
        LayerUnits(HEADS, (0, 9)),
    )
    model = cut(problem.student.state_dict(), problem.student.config, BertArchitecture(layers))
    plain = plain_bert(model)
    assert plain is not None
    assert plain.config.num_hidden_layers == 2
    logits = predict(plain, problem.alpha, "cpu"), predict(model, problem.alpha, "cpu")
    torch.testing.assert_close(*logits, atol=1e-5, rtol=0)


def test_a_disk_that_fills_up_while_a_model_is_written_is_an_oserror(
    problem: Problem, tmp_path: Path
) -> None:
    """No file may grow beyond 4 kB: safetensors has an error of its own for that."""
    source, out = tmp_path / "trial", tmp_path / "model"
    full = BertArchitecture.full(TINY)
    cut(problem.student.state_dict(), problem.student.config, full).save_pretrained(source)
    out.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            write_model(source, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(out)


WHOLE = LayerUnits(HEADS, (1, 2, 3))


def whole_bert(checkpoint: str, **fields: Any) -> BertForSequenceClassification:
    """The checkpoint with a new classifier, of two labels unless the fields say otherwise."""
    config = BertConfig.from_pretrained(checkpoint, **{"num_labels": 2, **fields})
    with torch.random.fork_rng(devices=[]):
        return BertForSequenceClassification(config)


def cut_to(heads: tuple[int, ...], whole: BertForSequenceClassification) -> Pruned:
    """The model with these heads and three neurons in each layer."""
    layers = (replace(WHOLE, heads=heads),) * TINY.layers
    return cut(whole.state_dict(), whole.config, BertArchitecture(layers))


def exported(model: Pruned | BertForSequenceClassification, tokenizer: Any, folder: Path) -> Path:
    """What is written of a trial of the model: `folder`/model."""
    save_model(model, folder / "trial")
    tokenizer.save_pretrained(folder / "trial")
    (folder / "model").mkdir()
    write_model(folder / "trial", folder / "model")
    return folder / "model"


@pytest.mark.parametrize("heads", [HEADS, (0, 2)], ids=["plain", "cut"])
def test_a_pipeline_gives_the_number_of_a_regression_and_cuts_long_text(
    tiny_bert: str, tmp_path: Path, heads: tuple[int, ...]
) -> None:
    model = cut_to(heads, whole_bert(tiny_bert, num_labels=1))
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    assert tokenizer.model_max_length > 64, "it knows no limit"
    folder = exported(model, tokenizer, tmp_path)
    assert write_model(tmp_path / "trial", folder) == (BERT, heads == HEADS)

    text = "joy bab " * 100
    answer = pipeline("text-classification", model=str(folder), device="cpu")
    logit = model(**tokenizer(text, truncation=True, max_length=64, return_tensors="pt")).logits
    assert answer(text, truncation=True)[0]["score"] == pytest.approx(logit.item(), abs=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        (WHOLE, WHOLE, replace(WHOLE, ffn=(1, 2))),
        (replace(WHOLE, heads=(0, 1)),) * 3,
        (WHOLE, WHOLE, replace(WHOLE, heads=())),
        (replace(WHOLE, ffn=()),) * 3,
        (LayerUnits((), (), dropped=True),) * 3,
        (replace(WHOLE, query_key=((0, 1),) * TINY.heads),) * 3,
        (replace(WHOLE, value=((0, 1),) * TINY.heads),) * 3,
        (replace(WHOLE, key_inputs=(0, 1)),) * 3,
    ],
)
def test_what_bert_has_no_word_for_is_no_plain_bert(
    problem: Problem, layers: tuple[LayerUnits, ...]
) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, BertArchitecture(layers))
    before = random_states()
    assert plain_bert(model) is None
    assert random_states() == before


@pytest.mark.parametrize("heads", [HEADS, (0, 2)], ids=["plain", "cut"])
def test_nothing_that_a_checkpoint_says_of_code_is_exported(
    tiny_bert: str, tmp_path: Path, heads: tuple[int, ...]
) -> None:
    foreign = {
        "custom_pipelines": {"text-classification": {"impl": "theirs--own.Pipeline"}},
        "auto_map": {"AutoModelForSequenceClassification": "theirs--own.Model"},
    }
    model = cut_to(heads, whole_bert(tiny_bert, **foreign))
    assert not set(foreign) & set(model.config.to_dict())
    for name, value in foreign.items():  # as a run that someone sent may say
        setattr(model.config, name, value)
    folder = exported(model, AutoTokenizer.from_pretrained(tiny_bert), tmp_path)
    assert "theirs" in (tmp_path / "trial" / "config.json").read_text()
    assert "theirs" not in (folder / "config.json").read_text()


def test_a_model_that_no_file_of_onnx_holds_is_refused(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    monkeypatch.setattr(onnx_model, "_LARGEST", 1000)
    model = BertForSequenceClassification.from_pretrained(tiny_bert)
    with pytest.raises(UserError, match=r"the model has 0\.0 GB of weights, and a file of ONNX"):
        onnx_model.write_onnx(model, tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_torch_reads_its_operators_once() -> None:
    exporter = pytest.importorskip("torch.onnx._internal.exporter._registration")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    onnx_model._read_operators_once()
    read = exporter.ONNXRegistry.from_torchlib
    assert read() is read()


def test_a_model_of_transformers_own_class_brings_no_code(tiny_bert: str, tmp_path: Path) -> None:
    """A method may return one that nothing was cut from."""
    folder = exported(whole_bert(tiny_bert), AutoTokenizer.from_pretrained(tiny_bert), tmp_path)
    assert not list(folder.glob("*.py"))
    assert "auto_map" not in (folder / "config.json").read_text()


def test_a_students_tokenizer_pads_right_as_it_learnt(tiny_bert: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert, padding_side="left", pad_token_type_id=1)
    save_tokenizer(tokenizer, tmp_path / "student", pads_right=True)
    save_tokenizer(tokenizer, tmp_path / "teacher")
    student, teacher = map(
        AutoTokenizer.from_pretrained, (tmp_path / "student", tmp_path / "teacher")
    )
    assert (student.padding_side, student.pad_token_type_id) == ("right", 0)
    assert (tokenizer.padding_side, teacher.padding_side) == ("left", "left")


def test_a_model_in_memory_is_saved_once_whatever_holds_it(tiny_bert: str, tmp_path: Path) -> None:
    model = whole_bert(tiny_bert)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    holders = (
        (model, tokenizer),
        SimpleNamespace(model=model, processing_class=tokenizer),  # as Trainer calls them
        pipeline("text-classification", model=model, tokenizer=tokenizer),
    )
    [saved] = {save_in(tmp_path / "models", holder) for holder in holders}  # type: ignore[arg-type]
    assert list((tmp_path / "models").iterdir()) == [saved]
    loaded = BertForSequenceClassification.from_pretrained(saved)
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))
    tokenizer.truncation_side = "left"
    other = save_in(tmp_path / "models", (model, tokenizer))
    assert AutoTokenizer.from_pretrained(other).truncation_side == "left"
    model.classifier.weight.data += 1
    assert save_in(tmp_path / "models", (model, tokenizer)) not in (saved, other)
    with pytest.raises(UserError, match="a BertForSequenceClassification without"):
        save_in(tmp_path, model)  # type: ignore[arg-type]


def test_an_export_may_be_saved_again_read_by_others_and_cuts_nothing(
    tiny_bert: str, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer("joy bab", truncation=True, max_length=4, padding="max_length")
    folder = exported(cut_to((0, 2), whole_bert(tiny_bert)), tokenizer, tmp_path)
    assert not list((tmp_path / "trial").glob("*.py"))
    said = json.loads((folder / "tokenizer.json").read_text())
    assert (said["truncation"], said["padding"]) == (None, None)
    modes = {file.stat().st_mode for file in folder.iterdir()}
    assert len(modes) == 1, "the weights may be read by whoever may read the rest"

    Pruned.from_pretrained(folder).save_pretrained(tmp_path / "again")
    code = (folder / "pruned_bert.py").read_text()
    assert (tmp_path / "again" / "pruned_bert.py").read_text() == code

"""When a cut model is a plain BERT, and what is written if it is not."""

import json
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
from objectives.errors import UserError
from objectives.measures.evaluate import predict
from objectives.problem import Problem
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.students.bert.exporting import plain_bert, save_in, save_model
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
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


@pytest.mark.parametrize("heads", [HEADS, (0, 2)], ids=["plain", "cut"])
def test_a_pipeline_gives_the_number_of_a_regression_and_cuts_long_text(
    tiny_bert: str, tmp_path: Path, heads: tuple[int, ...]
) -> None:
    config = BertConfig.from_pretrained(tiny_bert, num_labels=1)
    with torch.random.fork_rng(devices=[]):
        whole = BertForSequenceClassification(config)
    model = cut(whole.state_dict(), config, BertArchitecture((replace(WHOLE, heads=heads),) * 3))
    model.save_pretrained(tmp_path / "trial")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    assert tokenizer.model_max_length > 64, "it knows no limit"
    tokenizer.save_pretrained(tmp_path / "trial")
    (tmp_path / "model").mkdir()
    assert write_model(tmp_path / "trial", tmp_path / "model") == (BERT, heads == HEADS)

    text = "joy bab " * 100
    answer = pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
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
    config = BertConfig.from_pretrained(tiny_bert, num_labels=2, **foreign)
    with torch.random.fork_rng(devices=[]):
        whole = BertForSequenceClassification(config)
    model = cut(whole.state_dict(), config, BertArchitecture((replace(WHOLE, heads=heads),) * 3))
    assert not set(foreign) & set(model.config.to_dict())
    for name, value in foreign.items():  # as a run that someone sent may say
        setattr(model.config, name, value)
    model.save_pretrained(tmp_path / "trial")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "trial")
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "trial", tmp_path / "model")
    assert "theirs" not in (tmp_path / "model" / "config.json").read_text()


def test_a_model_of_transformers_own_class_brings_no_code(tiny_bert: str, tmp_path: Path) -> None:
    """A method may return one that nothing was cut from."""
    with torch.random.fork_rng(devices=[]):
        whole = BertForSequenceClassification(BertConfig.from_pretrained(tiny_bert, num_labels=2))
    save_model(whole, tmp_path / "trial")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "trial")
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "trial", tmp_path / "model")
    assert not list((tmp_path / "model").glob("*.py"))
    assert "auto_map" not in (tmp_path / "model" / "config.json").read_text()


def test_a_model_in_memory_is_saved_once_whatever_holds_it(tiny_bert: str, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        model = BertForSequenceClassification(BertConfig.from_pretrained(tiny_bert, num_labels=2))
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
    model.classifier.weight.data += 1
    assert save_in(tmp_path / "models", (model, tokenizer)) != saved
    with pytest.raises(UserError, match="a BertForSequenceClassification without"):
        save_in(tmp_path, model)  # type: ignore[arg-type]


def test_an_export_may_be_saved_again_read_by_others_and_cuts_nothing(
    tiny_bert: str, tmp_path: Path
) -> None:
    config = BertConfig.from_pretrained(tiny_bert, num_labels=2)
    with torch.random.fork_rng(devices=[]):
        whole = BertForSequenceClassification(config)
    layers = BertArchitecture((replace(WHOLE, heads=(0, 2)),) * 3)
    save_model(cut(whole.state_dict(), config, layers), tmp_path / "trial")
    assert not list((tmp_path / "trial").glob("*.py"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer("joy bab", truncation=True, max_length=4, padding="max_length")
    tokenizer.save_pretrained(tmp_path / "trial")
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "trial", tmp_path / "model")
    said = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    assert (said["truncation"], said["padding"]) == (None, None)
    modes = {file.stat().st_mode for file in (tmp_path / "model").iterdir()}
    assert len(modes) == 1, "the weights may be read by whoever may read the rest"

    model = PrunedBertForSequenceClassification.from_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "again")
    code = (tmp_path / "model" / "pruned_bert.py").read_text()
    assert (tmp_path / "again" / "pruned_bert.py").read_text() == code

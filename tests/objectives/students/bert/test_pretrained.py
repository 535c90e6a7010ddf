"""Reading checkpoints, and the one line for each that cannot be read."""

import copy
import json
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertTokenizer

from objectives.errors import UserError
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint
from objectives.workbench.workbench import Workbench
from tests.conftest import SPECIAL


@pytest.fixture
def copied(tiny_bert: str, tmp_path: Path) -> Path:
    """A copy of the tiny BERT, to be broken."""
    return copytree(tiny_bert, tmp_path / "copied")


def test_a_bert_checkpoint_is_read(tiny_bert: str) -> None:
    config = Checkpoint(tiny_bert).bert_config()
    assert isinstance(config, BertConfig)
    assert config.num_hidden_layers == 3
    assert Checkpoint(tiny_bert).tokenizer.tokenize("joy bab") == ["joy", "bab"]


def test_a_checkpoint_has_a_classifier_once_it_is_fine_tuned(
    tiny_bert: str, fine_tuned: str
) -> None:
    assert not Checkpoint(tiny_bert).has_classifier
    assert Checkpoint(fine_tuned).has_classifier


def test_what_a_config_wants_answered_counts_for_nothing(
    fine_tuned: str, copied: Path, tmp_path: Path
) -> None:
    copytree(fine_tuned, copied, dirs_exist_ok=True)
    asked = {"return_dict": False, "output_attentions": True, "output_hidden_states": True}
    changed = Checkpoint(rewritten(copied / "config.json", embedding_size=32, **asked))
    assert changed.fingerprint == Checkpoint(fine_tuned).fingerprint
    model = changed.load_classifier()
    answer = model(torch.tensor([[5, 6]]))
    assert set(answer.keys()) == {"logits"}
    small = cut(model.state_dict(), model.config, BertArchitecture.full(shape_of(model.config)))
    small.save_pretrained(tmp_path / "cut")
    torch.testing.assert_close(small(torch.tensor([[5, 6]])).logits, answer.logits)


def test_a_fingerprint_is_that_of_the_weights(
    tiny_bert: str, copied: Path, fine_tuned: str
) -> None:
    assert Checkpoint(str(copied)).fingerprint == Checkpoint(tiny_bert).fingerprint
    assert Checkpoint(fine_tuned).fingerprint != Checkpoint(tiny_bert).fingerprint


def rewritten(file: Path, **fields: Any) -> str:
    """The folder of a file of JSON in which these fields were changed."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return str(file.parent)


@pytest.mark.parametrize(
    "mended",
    [
        {"num_attention_heads": 8},
        {"num_hidden_layers": 2},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-5},
        {"hidden_dropout_prob": 0.0},
        {"id2label": {"0": "no", "1": "yes"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_fingerprint_is_that_of_what_decides_what_is_computed_too(
    tiny_bert: str, copied: Path, mended: dict[str, Any]
) -> None:
    told = {"transformers_version": "6.0", "_name_or_path": "elsewhere", "use_cache": False}
    assert (
        Checkpoint(rewritten(copied / "config.json", **told)).fingerprint
        == Checkpoint(tiny_bert).fingerprint
    )
    assert (
        Checkpoint(rewritten(copied / "config.json", **mended)).fingerprint
        != Checkpoint(tiny_bert).fingerprint
    )


def test_a_tokenizer_counts_by_what_it_reads_and_not_by_its_files(copied: Path) -> None:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, "the", "twice", "##s"])}
    BertTokenizer(vocab=vocabulary).save_pretrained(copied)

    def told(checkpoint: str) -> str:
        return Checkpoint(checkpoint).fingerprint_with_tokenizer

    as_it_was = told(str(copied))
    settings = copied / "tokenizer_config.json"
    assert told(rewritten(settings, backend="of old")) == as_it_was
    mended = told(rewritten(settings, do_lower_case=False))
    BertTokenizer(vocab={**vocabulary, "##t": 8}).save_pretrained(copied)
    assert len({as_it_was, mended, told(str(copied))}) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_decoder": True, "architectures": ["BertLMHeadModel"]}, "BertLMHeadModel"),
        ({"position_embedding_type": "relative_key"}, r"bert \(with relative positions\)"),
    ],
)
def test_a_bert_of_another_kind_is_refused(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    BertConfig(**fields).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"its architecture is {said}"):
        Checkpoint(str(tmp_path)).bert_config()


def test_weights_of_half_precision_are_loaded_as_float32(
    workbench: Workbench, tmp_path: Path
) -> None:
    copy.deepcopy(workbench.problem.student).half().save_pretrained(tmp_path)
    assert {
        weight.dtype for weight in Checkpoint(str(tmp_path)).load_classifier().parameters()
    } == {torch.float32}


@pytest.mark.parametrize("name", ["nowhere", "./no/where/at/all", "no-such-user/no-such-model"])
def test_a_checkpoint_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"^model '{name}': no such folder, and no model") as error:
        Checkpoint(name).bert_config()
    assert "\n" not in str(error.value)


def test_a_folder_of_almost_that_name_is_offered(copied: Path) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{copied}'\?$"):
        Checkpoint(f"{copied}x").bert_config()


def test_a_folder_without_config_is_no_name_of_the_hub(copied: Path) -> None:
    (copied / "config.json").unlink()
    with pytest.raises(UserError, match=r"copied': no config\.json in the folder; name the folder"):
        Checkpoint(str(copied)).bert_config()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id2label": {"zero": "joy", "one": "grief"}}, "invalid literal for int.*'zero'"),
        ({"id2label": ["joy", "grief"]}, "'list' object has no attribute 'items'"),
        ({"hidden_size": "32"}, "Validation error for field 'hidden_size'"),
        ({"model_type": "no-such-type"}, ".* model type `no-such-type`.*"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(
    copied: Path, changes: dict[str, Any], reason: str
) -> None:
    folder = rewritten(copied / "config.json", **changes)
    message = rf"^model '.*copied': its config\.json cannot be read \({reason}\); repair it"
    with pytest.raises(UserError, match=message) as error:
        Checkpoint(folder).bert_config()
    assert "\n" not in str(error.value)


def test_a_config_that_was_cut_short_is_named(copied: Path) -> None:
    file = copied / "config.json"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match=r"its config\.json cannot be read \(.*not a valid JSON"):
        Checkpoint(str(copied)).bert_config()


def test_a_checkpoint_without_weights_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    for name in ("has_classifier", "fingerprint"):
        with pytest.raises(UserError, match=r"it has neither model\.safetensors nor pytorch_model"):
            getattr(Checkpoint(str(copied)), name)


def test_weights_that_are_no_safetensors_are_refused(copied: Path) -> None:
    """Such as the pointer that git leaves where its large files were not fetched."""
    (copied / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        _ = Checkpoint(str(copied)).has_classifier


def test_a_checkpoint_without_tokenizer_is_refused(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        _ = Checkpoint(str(copied)).tokenizer


def test_a_tokenizer_that_reads_otherwise_without_a_package_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "emoji", None)
    (tmp_path / "vocab.txt").write_text("joy 1\n")
    (tmp_path / "bpe.codes").write_text("j o 1\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertweetTokenizer"}')
    note = next(Checkpoint(str(tmp_path)).notes())
    assert note.startswith(f"the tokenizer of '{tmp_path}': emoji is not installed")
    assert "".join(capfd.readouterr()) == ""


def test_tokens_without_an_embedding_are_noted(copied: Path) -> None:
    checkpoint = Checkpoint(str(copied))
    assert list(checkpoint.notes()) == []
    checkpoint.tokenizer.add_tokens(["<url>", "<user>"])
    (note,) = checkpoint.notes()
    assert "has 2 tokens without an embedding in the model: '<url>', '<user>'; a text" in note


def test_no_code_of_a_checkpoint_is_run_or_passed_on(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (copied / "own.py").write_text("raise SystemExit('it was run')")
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    Checkpoint(str(copied)).tokenizer.save_pretrained(copied / "saved")
    assert "auto_map" not in json.loads((copied / "saved/tokenizer_config.json").read_text())
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        Checkpoint(str(copied)).bert_config()
    assert "it was run" not in "".join(capfd.readouterr())


def test_other_weights_that_a_config_names_are_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "transformers_weights": "a.bin"}))
    with pytest.raises(UserError, match="names another file of weights"):
        Checkpoint(str(copied)).bert_config()

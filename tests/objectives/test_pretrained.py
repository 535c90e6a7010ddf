"""Reading checkpoints, and the one line for each that cannot be read."""

from __future__ import annotations

import copy
from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import AlbertConfig, BertConfig

from objectives.errors import UserError
from objectives.pretrained import (
    fingerprint,
    has_classifier,
    load_classifier,
    load_tokenizer,
    read_config,
)
from objectives.problem import Workbench


@pytest.fixture
def copied(tiny_bert: str, tmp_path: Path) -> Path:
    """A copy of the tiny BERT, to be broken."""
    return copytree(tiny_bert, tmp_path / "copied")


def test_a_bert_checkpoint_is_read(tiny_bert: str) -> None:
    config = read_config(tiny_bert)
    assert isinstance(config, BertConfig)
    assert config.num_hidden_layers == 3
    assert load_tokenizer(tiny_bert).tokenize("joy bab") == ["joy", "bab"]


def test_a_checkpoint_has_a_classifier_once_it_is_fine_tuned(
    tiny_bert: str, workbench: Workbench, tmp_path: Path
) -> None:
    workbench.problem.student.save_pretrained(tmp_path)
    assert not has_classifier(tiny_bert)
    assert has_classifier(str(tmp_path))


def test_a_fingerprint_is_that_of_the_weights(
    tiny_bert: str, copied: Path, workbench: Workbench, tmp_path: Path
) -> None:
    assert fingerprint(str(copied)) == fingerprint(tiny_bert)
    workbench.problem.student.save_pretrained(tmp_path)
    assert fingerprint(str(tmp_path)) != fingerprint(tiny_bert)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    AlbertConfig(architectures=["AlbertForMaskedLM"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"its architecture is AlbertForMaskedLM \('albert"):
        read_config(str(tmp_path))


def test_a_decoder_is_refused(tmp_path: Path) -> None:
    BertConfig(is_decoder=True, architectures=["BertLMHeadModel"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="its architecture is BertLMHeadModel"):
        read_config(str(tmp_path))


def test_relative_positions_are_refused(tmp_path: Path) -> None:
    BertConfig(position_embedding_type="relative_key").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"its architecture is bert \(with relative positions\)"):
        read_config(str(tmp_path))


def test_weights_of_half_precision_are_loaded_as_float32(
    workbench: Workbench, tmp_path: Path
) -> None:
    copy.deepcopy(workbench.problem.student).half().save_pretrained(tmp_path)
    assert {weight.dtype for weight in load_classifier(str(tmp_path)).parameters()} == {
        torch.float32
    }


@pytest.mark.parametrize("name", ["nowhere", "./no/where/at/all", "no-such-user/no-such-model"])
def test_a_checkpoint_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"^model '{name}': no such folder, and no model") as error:
        read_config(name)
    assert "\n" not in str(error.value)


def test_a_checkpoint_without_safetensors_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    for read in (has_classifier, fingerprint):
        with pytest.raises(UserError, match=r"no model\.safetensors in it; .* safetensors only"):
            read(str(copied))


def test_weights_that_are_no_safetensors_are_refused(copied: Path) -> None:
    """Such as the pointer that git leaves where its large files were not fetched."""
    (copied / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        has_classifier(str(copied))


def test_a_checkpoint_without_tokenizer_is_refused(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        load_tokenizer(str(copied))

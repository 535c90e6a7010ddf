"""Tiny classifiers of transformers' own classes that are no BERT, each with a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BartConfig,
    DebertaV2Config,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    XLNetConfig,
)
from transformers.configuration_utils import PreTrainedConfig

from tests.bert_variants import WORDS

_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}
_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
_BOTH, _ENDS = "<s> $A </s>", "$A </s> <s>"
_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
_KINDS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any], str, dict[str, Any]]] = {
    "modernbert": (ModernBertConfig, {**_SIZES, "local_attention": 8}, _BOTH, {}),
    "deberta-v2": (
        DebertaV2Config,
        {**_SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        _BOTH,
        {"model_input_names": _TYPES},
    ),
    "albert": (AlbertConfig, {**_SIZES, "embedding_size": 8}, _BOTH, {"model_input_names": _TYPES}),
    "xlnet": (
        XLNetConfig,
        {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "initializer_range": 0.5},
        _ENDS,
        {"padding_side": "left", "model_input_names": _TYPES},
    ),
    "bart": (
        BartConfig,
        {
            "d_model": 16,
            **{
                f"{side}_{size}": number
                for side in ("encoder", "decoder")
                for size, number in {"layers": 1, "attention_heads": 2, "ffn_dim": 24}.items()
            },
            "max_position_embeddings": 64,
            "init_std": 0.5,
            "decoder_start_token_id": 2,
        },
        _BOTH,
        {"eos_token": "</s>"},
    ),
    "llama": (LlamaConfig, _SIZES, "<s> $A", {"pad_token": None, "eos_token": "</s>"}),
}
KINDS = tuple(_KINDS)
"""Names of what `write_classifier` makes: the last is a decoder without a token for padding."""


def write_classifier(
    kind: str, folder: Path, labels: Sequence[str] | None = None, seed: int = 0
) -> str:
    """A checkpoint of the kind in the folder; with a classifier if it gets names for its outputs.

    A word of WORDS is one token to all.
    """
    config_class, fields, template, changes = _KINDS[kind]
    ids = {token: number for number, token in enumerate(("<pad>", "<s>", "</s>", "<unk>", *WORDS))}
    own = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    own.pre_tokenizer = Whitespace()
    own.post_processor = TemplateProcessing(
        single=template, special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")]
    )
    named = {"model_input_names": ["input_ids", "attention_mask"], **_SPECIAL, **changes}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, **named)
    config = config_class(
        **fields,
        vocab_size=len(ids),
        pad_token_id=None if named["pad_token"] is None else 0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model_class: Any = AutoModel
    if labels is not None:
        model_class = AutoModelForSequenceClassification
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: number for number, name in enumerate(labels)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class.from_config(config, attn_implementation="eager")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)

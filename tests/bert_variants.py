"""Tiny checkpoints of BERT's variants, of transformers' own classes, each with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    CamembertConfig,
    DistilBertConfig,
    DistilBertTokenizer,
    ElectraConfig,
    MPNetConfig,
    MPNetTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaTokenizer,
)
from transformers.configuration_utils import PreTrainedConfig

from tests.conftest import FILLERS, MARKERS, SPECIAL, TINY

WORDS = [*MARKERS, *FILLERS]
_SIZES = {
    "hidden_size": TINY.hidden,
    "num_hidden_layers": TINY.layers,
    "num_attention_heads": TINY.heads,
    "intermediate_size": TINY.ffn,
    "initializer_range": 0.2,
    "max_position_embeddings": 66,
}
_DISTILBERT = {
    "dim": TINY.hidden,
    "n_layers": TINY.layers,
    "n_heads": TINY.heads,
    "hidden_dim": TINY.ffn,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
}
_KINDS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "bert": (BertConfig, {**_SIZES, "layer_norm_eps": 1e-3}),
    "bert-relu": (BertConfig, {**_SIZES, "hidden_act": "relu"}),
    "bert-wide": (BertConfig, {**_SIZES, "embedding_size": TINY.hidden}),  # which it never reads
    "electra": (ElectraConfig, {**_SIZES, "embedding_size": 12}),
    "electra-wide": (ElectraConfig, {**_SIZES, "embedding_size": TINY.hidden}),
    "roberta": (RobertaConfig, {**_SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-3}),
    "xlm-roberta": (XLMRobertaConfig, {**_SIZES, "type_vocab_size": 1}),
    "camembert": (CamembertConfig, {**_SIZES, "type_vocab_size": 1, "hidden_act": "gelu_new"}),
    "mpnet": (MPNetConfig, {**_SIZES, "layer_norm_eps": 1e-3}),
    "mpnet-relu": (MPNetConfig, {**_SIZES, "hidden_act": "relu"}),
    "distilbert": (DistilBertConfig, _DISTILBERT),
    "distilbert-relu": (DistilBertConfig, {**_DISTILBERT, "activation": "relu"}),
}
KINDS = tuple(_KINDS)
"""Names of what `write_variant` makes."""


def write_variant(kind: str, folder: Path, labels: Sequence[str] | None = None) -> str:
    """A checkpoint of the kind in the folder; with a classifier if it gets names for its outputs.

    All its weights are random, biases and layer norms too, so that none can stand for another.
    """
    config_class, fields = _KINDS[kind]
    tokenizer = _tokenizer(kind)
    config = config_class(**fields, vocab_size=len(tokenizer))
    model_class: Any = AutoModel
    if labels is not None:
        model_class = AutoModelForSequenceClassification
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: number for number, name in enumerate(labels)}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: PreTrainedModel = model_class.from_config(config)
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """A word of WORDS is one token to each; only RoBERTa's sees what it is made of."""
    word_piece = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    if kind.startswith("distilbert"):
        return DistilBertTokenizer(vocab=word_piece)
    if kind.startswith(("bert", "electra")):
        return BertTokenizer(vocab=word_piece)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if kind.startswith("mpnet"):
        pieces = [*special, *WORDS, "[UNK]", "<mask>"]
        return MPNetTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    if kind != "roberta":
        pieces = [*special, *("▁" + word for word in WORDS), "<mask>"]
        return XLMRobertaTokenizer(vocab=[(piece, -float(piece in WORDS)) for piece in pieces])
    vocabulary = dict.fromkeys([*special, "<mask>", *sorted({*"".join(WORDS), "Ġ"})])
    merges: dict[tuple[str, str], None] = {}
    for word in (*WORDS, *("Ġ" + word for word in WORDS)):
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
            vocabulary[word[: end + 1]] = None
    return RobertaTokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)}, merges=list(merges)
    )


def write_student(
    checkpoint: str, folder: Path, labels: list[str] | None = None, layers: int = 2
) -> str:
    """A BERT that reads what the checkpoint reads, 16 wide, with two heads in each layer; with a
    classifier if it has labels."""
    names = dict(enumerate(labels or []))
    sizes = {"num_hidden_layers": layers, "hidden_size": 16, "num_attention_heads": 2}
    config = BertConfig.from_pretrained(checkpoint, **sizes, intermediate_size=24)
    if labels is not None:
        config.id2label = names
        config.label2id = {name: index for index, name in names.items()}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = (BertModel if labels is None else BertForSequenceClassification)(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return str(folder)

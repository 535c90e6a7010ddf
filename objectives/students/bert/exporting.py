"""A cut model as transformers' own class, where it is one; models and tokenizers on a disk."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.initialization import no_init_weights

from objectives.students.bert.architecture import Widths
from objectives.students.bert.cutting import widths_of
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification

_OWN_NAMES = ("model_type", "architectures", "per_layer_config", "head_dim", "full_vocab_size")
"""What a cut model's configuration says and BERT's does not, or says otherwise."""


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """`save_pretrained`; OSError if the disk refuses, for which safetensors has its own error."""
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(folder)) from error
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):  # by themselves for their owner alone
        weights.chmod(mode)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """`save_pretrained`; OSError if the disk refuses, for which tokenizers has no error at all."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        raise OSError(errno.EIO, str(error), str(folder)) from error


def plain_bert(model: PrunedBertForSequenceClassification) -> BertForSequenceClassification | None:
    """The same model as transformers' own class, or None where that cannot be said: BERT knows one
    number of FFN neurons for all layers, at least one, and heads that fill the hidden size; and no
    pooler or embeddings but its own."""
    config, widths = model.config, widths_of(model.config)
    hidden, heads = config.hidden_size, config.hidden_size // config.head_dim
    ffn = widths[0].ffn
    whole = Widths(heads, hidden, hidden, hidden, hidden, hidden, ffn)
    own = (config.embedding_size, config.embedding_bits, config.pooler_bits)
    bits = any(layer.weight_bits for layer in config.of_layers())
    as_bert_does = config.pooler_act == "tanh" and own == (None,) * 3 and not bits
    if not ffn or not as_bert_does or any(layer != whole for layer in widths):
        return None
    said = {name: value for name, value in config.to_dict().items() if name not in _OWN_NAMES}
    said |= {"num_attention_heads": heads, "intermediate_size": ffn}
    with no_init_weights():  # they are loaded below
        plain = BertForSequenceClassification(BertConfig.from_dict(said))
    plain.load_state_dict(model.state_dict())
    plain.train(False)
    return plain

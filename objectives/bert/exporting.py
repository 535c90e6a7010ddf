"""A cut model as a folder that transformers loads where maskfront is not installed."""

from __future__ import annotations

import errno
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.initialization import no_init_weights

from objectives.bert import pruned_bert
from objectives.bert.architecture import Widths
from objectives.bert.cutting import FOREIGN, widths_of
from objectives.bert.pretrained import load_tokenizer
from objectives.bert.pruned_bert import PrunedBertForSequenceClassification

_OWN_NAMES = ("model_type", "architectures", "per_layer_config", "head_dim", "full_vocab_size")
"""What a cut model's configuration says and BERT's does not, or says otherwise."""
_PER_LAYER_NAMES = (
    *("qk_head_dim", "v_head_dim", "query_inputs", "key_inputs", "value_inputs"),
    *("weight_bits", "halves", "input_bits"),
)


def write_model(source: Path, out: Path) -> bool:
    """Write a trial's model and tokenizer to the folder `out`; returns whether it is a plain BERT.

    If not, the folder holds the file of the cut model's classes, and its configuration names them:
    transformers runs it for a user who passes `trust_remote_code=True`, and prefers the registered
    classes, without the flag, where objectives was imported.

    The configuration says whether its one output is a number, which a pipeline would else take for
    the logit of a class, and the tokenizer how many tokens the model takes.
    """
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers, even to overwrite them
        model = PrunedBertForSequenceClassification.from_pretrained(source)
        model.config.problem_type = (
            "regression" if model.num_labels == 1 else "single_label_classification"
        )
        for name in FOREIGN:
            model.config.__dict__.pop(name, None)
        plain = plain_bert(model)
    if plain is None:
        file = pruned_bert.CODE[0].stem  # `save_pretrained` puts it beside the model
        model.config.auto_map = {
            "AutoConfig": f"{file}.{type(model.config).__name__}",
            "AutoModelForSequenceClassification": f"{file}.{type(model).__name__}",
        }
        for name in _PER_LAYER_NAMES:  # a reader who does not know these wants them said globally
            setattr(model.config, name, None)
    save_model(model if plain is None else plain, out)
    tokenizer = load_tokenizer(str(source))
    longest = model.config.max_position_embeddings
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
    if tokenizer.is_fast:  # what a study cut its texts to is nobody else's limit
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    save_tokenizer(tokenizer, out)
    return plain is not None


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
    """The same model as transformers' own class, or None where that cannot be said.

    BERT knows one number of FFN neurons for all layers, at least one, and heads that fill the
    hidden size; and no pooler or embeddings but its own.
    """
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
    plain_config = BertConfig.from_dict(
        {**said, "num_attention_heads": heads, "intermediate_size": ffn}
    )
    with no_init_weights():  # they are loaded below
        plain: BertForSequenceClassification = BertForSequenceClassification(plain_config)
    plain.load_state_dict(model.state_dict())
    plain.train(False)
    return plain

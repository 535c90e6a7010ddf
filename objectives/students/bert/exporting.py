"""Convert a cut model to transformers' own class, if it has one; write models and tokenizers."""

import copy
import errno
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from safetensors import SafetensorError
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.initialization import no_init_weights

from objectives.cache import atomic_write
from objectives.errors import UserError
from objectives.students.bert.architecture import Widths
from objectives.students.bert.cutting import widths_of
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification

if TYPE_CHECKING:
    from transformers import Pipeline, Trainer  # two seconds

InMemory: TypeAlias = "tuple[PreTrainedModel, PreTrainedTokenizerBase] | Trainer | Pipeline"
"""Model in memory, with its tokenizer."""

_OWN_NAMES = ("model_type", "architectures", "per_layer_config", "head_dim", "full_vocab_size")
"""Entries of a cut model's configuration that BERT's lacks or spells differently."""
_LAYERS = "bert.encoder.layer."


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Save a model. Raises OSError if the disk refuses, for which safetensors has its own error."""
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(folder)) from error
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):  # by themselves for their owner alone
        weights.chmod(mode)


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, folder: Path, *, pads_right: bool = False
) -> None:
    """Save a tokenizer, which `pads_right` if asked. Raises OSError if the disk refuses."""
    if pads_right and tokenizer.padding_side != "right":
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.init_kwargs |= {"padding_side": "right", "pad_token_type_id": 0}
        tokenizer.padding_side = "right"
    # transformers saves the side that it was made with, not one that was set later.
    if tokenizer.truncation_side != tokenizer.init_kwargs.get("truncation_side", "right"):
        tokenizer.init_kwargs["truncation_side"] = tokenizer.truncation_side
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        raise OSError(errno.EIO, str(error), str(folder)) from error


def save_in(folder: Path, model: InMemory) -> Path:
    """Save a model in memory below a folder, named by its content, or raise UserError."""
    from objectives.students.bert.pretrained import Checkpoint  # it loads datasets

    net = model[0] if isinstance(model, tuple) else getattr(model, "model", None)
    tokenizer = model[1] if isinstance(model, tuple) else getattr(model, "processing_class", None)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    if not isinstance(net, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"the model is a {type(model).__name__} without a transformers model or its tokenizer; "
            "give a folder, (model, tokenizer), a Trainer with processing_class, or a pipeline"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        written = Path(scratch) / "model"
        save_model(net, written)
        save_tokenizer(tokenizer, written)
        target = folder / Checkpoint(str(written)).fingerprint_with_tokenizer
        if not target.is_dir():
            with atomic_write(target) as unfinished:
                written.rename(unfinished)
    return target


def plain_bert(model: PrunedBertForSequenceClassification) -> BertForSequenceClassification | None:
    """Convert to transformers' own class; None if BERT has no such model."""
    # BERT knows one number of FFN neurons for all layers, at least one, heads that fill the hidden
    # size, and no pooler, embeddings, order of sublayers or relative positions but its own.
    config, widths = model.config, widths_of(model.config)
    hidden, heads = config.hidden_size, config.hidden_size // config.head_dim
    stays = [number for number, layer in enumerate(widths) if layer.layers]
    ffn = max(layer.ffn for layer in widths)
    full = Widths(heads, hidden, hidden, hidden, hidden, hidden, ffn, 1)
    entries = ("embedding_size", "embedding_bits", "pooler_bits", "sublayers", "position_buckets")
    extras = any(getattr(config, name) is not None for name in entries)
    bits = any(layer.weight_bits or layer.ranks for layer in config.of_layers())
    as_bert_does = config.pooler_act == "tanh" and not extras and not bits
    if not ffn or not as_bert_does or any(widths[n] != full for n in stays):
        return None
    fields = {name: value for name, value in config.to_dict().items() if name not in _OWN_NAMES}
    fields |= {"num_attention_heads": heads, "intermediate_size": ffn}
    fields["num_hidden_layers"] = len(stays)
    with no_init_weights():  # they are loaded below
        plain = BertForSequenceClassification(BertConfig.from_dict(fields))
    layers = nn.ModuleList(model.get_submodule(f"bert.encoder.layer.{number}") for number in stays)
    rest = {n: w for n, w in model.state_dict().items() if not n.startswith(_LAYERS)}
    plain.load_state_dict(rest | layers.state_dict(prefix=_LAYERS))
    plain.train(False)
    return plain

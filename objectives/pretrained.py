"""Loading BERT checkpoints: BERT, TinyBERT and MiniLM weights, by their standard names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from huggingface_hub import metadata_load
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from objectives.errors import UserError
from objectives.pruned_bert import PrunedBertForSequenceClassification

Classifier: TypeAlias = BertForSequenceClassification | PrunedBertForSequenceClassification
"""A BERT with pooler and classifier, unpruned or cut."""

_WEIGHTS = "model.safetensors"


def read_config(checkpoint: str) -> BertConfig:
    """The configuration of a checkpoint: a folder, or a name on the hub.

    Raises UserError if nothing is found there, or if it is no BERT encoder.
    """
    try:
        config = AutoConfig.from_pretrained(checkpoint)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model '{checkpoint}': no such folder, and no model of that name could be loaded "
            f"from the hub ({_first_line(error)})"
        ) from error
    if config.model_type != "bert" or config.is_decoder:
        architecture = (config.architectures or [config.model_type])[0]
        kind = "a decoder" if config.model_type == "bert" else f"'{config.model_type}'"
        raise UserError(
            f"model '{checkpoint}': its architecture is {architecture} ({kind}); "
            "maskfront prunes BERT encoders (BERT, TinyBERT, MiniLM: model_type 'bert')"
        )
    assert isinstance(config, BertConfig)
    return config


def load_tokenizer(checkpoint: str) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside a checkpoint."""
    # Without its files transformers would make up a tokenizer that knows no word.
    if not any(_find(checkpoint, name) for name in ("tokenizer.json", "vocab.txt")):
        raise UserError(f"model '{checkpoint}': no tokenizer (tokenizer.json or vocab.txt) in it")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(checkpoint)
    return tokenizer


def has_classifier(checkpoint: str) -> bool:
    """Whether the checkpoint was fine-tuned: it holds the weights of a classifier."""
    return _holds(checkpoint, "classifier.weight")


def has_mlm_head(checkpoint: str) -> bool:
    """Whether the checkpoint can fill in masked words: it holds the head of pretraining."""
    return _holds(checkpoint, "cls.predictions.transform.dense.weight")


def output_names(checkpoint: str) -> list[str]:
    """What the outputs of the checkpoint's classifier are called, in their order."""
    names = read_config(checkpoint).id2label or {}
    return [str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0]))]


def label_order(checkpoint: str, label_names: Sequence[str]) -> list[int]:
    """For each of the labels its output of the checkpoint's classifier.

    Names that nobody set (LABEL_0, LABEL_1, ...) match by index, and so does the one output of a
    regression. Raises UserError for a label that the classifier does not know.
    """
    known = output_names(checkpoint)
    unnamed = [f"LABEL_{output}" for output in range(len(known))]
    if len(known) == len(label_names) and (known == unnamed or len(known) == 1):
        return list(range(len(known)))
    if len(label_names) == 1:
        raise UserError(
            f"model '{checkpoint}': its classifier has {len(known)} outputs "
            f"({', '.join(known)}); a task whose labels are numbers needs one"
        )
    unknown = [name for name in label_names if name not in known]
    if unknown:
        raise UserError(
            f"model '{checkpoint}': it does not know the label(s) {', '.join(unknown)} of the "
            f"task; it knows {', '.join(known)}"
        )
    return [known.index(name) for name in label_names]


def fingerprint(checkpoint: str) -> str:
    """SHA-256 of the checkpoint's weights, hexadecimal, shortened to 16 digits."""
    with _weights(checkpoint).open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()[:16]


def license_of(checkpoint: str) -> str | None:
    """What the model card beside a checkpoint says of its license; None where it says nothing."""
    card = _find(checkpoint, "README.md")
    if card is None:
        return None
    try:
        said = (metadata_load(card) or {}).get("license")
    except ValueError:  # its front matter is no mapping
        return None
    return said if isinstance(said, str) else None


def _holds(checkpoint: str, weight: str) -> bool:
    path = _weights(checkpoint)
    try:
        with safe_open(path, framework="numpy") as weights:
            return weight in weights.keys()  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise UserError(f"model '{checkpoint}': {path.name} cannot be read ({error})") from error


def _weights(checkpoint: str) -> Path:
    found = _find(checkpoint, _WEIGHTS)
    if found is None:
        raise UserError(
            f"model '{checkpoint}': no {_WEIGHTS} in it; maskfront reads safetensors only "
            f"(save_pretrained of transformers writes it)"
        )
    return Path(found)


def _find(checkpoint: str, name: str) -> str | None:
    try:
        return cached_file(checkpoint, name)
    except (OSError, ValueError):
        return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]

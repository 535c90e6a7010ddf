"""Loading checkpoints: BERT, TinyBERT and MiniLM, and what `adapters` reads as a BERT; of all other
classifiers of transformers what a teacher needs, which only answers."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias, TypeGuard

import torch
from huggingface_hub import metadata_load
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.initialization import no_init_weights

from objectives.cache import content_key
from objectives.device import listening
from objectives.errors import UserError, a_few, did_you_mean, first_line
from objectives.students.bert.adapters import ADAPTERS, as_bert, settings_of
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.loading import (
    PICKLED,
    find,
    fingerprint_of_weights,
    is_pickled,
    load,
    refuse_adapter,
    stored,
)

Classifier: TypeAlias = BertForSequenceClassification | PrunedBertForSequenceClassification
"""BERT with pooler and classifier, unpruned or cut."""


def is_cut(model: Classifier) -> TypeGuard[PrunedBertForSequenceClassification]:
    """Whether a model is a cut one."""
    return isinstance(model, PrunedBertForSequenceClassification)


SEVERAL: Final = "multi_label_classification"
"""Problem type in transformers for several labels a text."""
_TOKENIZERS = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("sentencepiece.bpe.model", "spiece.model", "spm.model"),
)
_PROBE = "The naïve CAFÉ didn't pay 3.50 for 中文, <b>re-tokenised</b>  twice"
"""Text that tokenizers of one vocabulary may split differently."""


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint of a classifier, or of a model that can become one: a folder or a hub's name."""

    name: str

    def refusal(self, problem: str) -> UserError:
        """Error that names the checkpoint."""
        return UserError(f"model '{self.name}': {problem}")

    @cached_property
    def config(self) -> PreTrainedConfig:
        """Configuration of any model type. Raises UserError if there is none."""
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                self.name, trust_remote_code=False
            )
            config.get_text_config().to_dict()  # it may be anything
        except Exception as error:  # a config.json makes transformers raise almost anything
            refuse_adapter(self.name)
            reason, folder = first_line(error).rstrip(":"), Path(self.name)
            problem = f"its config.json cannot be read ({reason}); repair it, or save it anew"
            if not folder.is_dir():
                where = "no such folder, and no model of that name could be loaded from the hub"
                beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
                similar = did_you_mean(self.name, [str(path) for path in beside if path.is_dir()])
                problem = f"{where} ({reason}){similar}"
            elif not (folder / "config.json").is_file():
                wanted = "name the folder that save_pretrained of transformers has written"
                problem = f"no config.json in the folder; {wanted}"
            raise self.refusal(problem) from error
        if getattr(config, "transformers_weights", None):
            raise self.refusal(
                "its config.json names another file of weights (transformers_weights); remove that "
                "entry, and call the file model.safetensors"
            )
        if getattr(config, "quantization_config", None):
            raise self.refusal(
                "its weights are quantised (quantization_config in its config.json); save it in "
                "float32: model.dequantize().save_pretrained(FOLDER)"
            )
        config._attn_implementation = None  # a config.json may name code of the hub
        config.chunk_size_feed_forward = 0  # texts are of all lengths, not of multiples
        # Else outputs would be tuples, or more than logits; with the last one sdpa saves no model.
        config.return_dict = True
        config.output_hidden_states = config.output_attentions = False
        if config.model_type == "bert":  # transformers' reads none of these, a cut one would
            for name in ("embedding_size", "pooler_act", "position_buckets"):
                vars(config).pop(name, None)
        return config

    def bert_config(self) -> BertConfig:
        """New configuration of BERT. Raises UserError unless the model computes what BERT does."""
        config = deepcopy(self.config)
        if differs := self._no_bert:
            raise self.refusal(
                f"its architecture is {self._architecture} ({differs}); "
                "maskfront prunes encoders that compute what BERT does: "
                f"{_listed(list(ADAPTERS), 'and')}"
            )
        try:
            if isinstance(config, BertConfig):
                return config
            return ADAPTERS[config.model_type].config(config)
        except Exception as error:  # of fields that are no numbers
            raise self._useless(error) from error

    @property
    def _no_bert(self) -> str:
        if self.config.model_type not in ADAPTERS:
            return f"'{self.config.model_type}'"
        if getattr(self.config, "is_decoder", False):
            return "a decoder"
        relative = getattr(self.config, "position_embedding_type", "absolute") != "absolute"
        return "with relative positions" if relative else ""

    @property
    def is_bert(self) -> bool:
        """Whether it computes what BERT does, so that it can be cut and shows hidden states."""
        return not self._no_bert

    @property
    def _architecture(self) -> str:
        names = self.config.architectures
        return str(names[0]) if isinstance(names, list) and names else self.config.model_type

    @property
    def longest(self) -> int | None:
        """Largest number of tokens that it reads; None if unbounded."""
        config = self.bert_config() if self.is_bert else self.config
        most = getattr(config, "max_position_embeddings", None)
        return most if most is not None and most > 0 else None  # XLNet says -1

    @cached_property
    def _weights(self) -> frozenset[str]:
        return frozenset(stored(self.name))

    @property
    def has_mlm_head(self) -> bool:
        """Whether it has the masked-LM head."""
        return "cls.predictions.transform.dense.weight" in self._weights

    @cached_property
    def has_classifier(self) -> bool:
        """Whether it has a text classifier. Raises UserError for another kind of model."""
        if self._architecture.endswith("ForSequenceClassification"):
            return True
        if adapter := ADAPTERS.get(self.config.model_type):
            head = {*adapter.head}
        else:
            model = self._empty()
            body = f"{model.base_model_prefix}."
            head = {name for name in model.state_dict() if not name.startswith(body)}
        if self._weights >= head:
            return True
        if any(name.startswith("classifier.") for name in self._weights):
            raise self.refusal(
                f"its classifier is that of {self._architecture}, not one of whole texts "
                "(...ForSequenceClassification); use the model without this head"
            )
        return False

    def load_classifier(
        self, outputs: Sequence[str] | None = None, problem_type: str | None = None
    ) -> PreTrainedModel:
        """Load transformers' own classifier, float32 on the CPU; `outputs` renames outputs."""
        # Weights that it lacks are drawn. Not all kinds know the attention that transformers takes.
        fields: dict[str, object] = {} if self.is_bert else {"_attn_implementation": "eager"}
        if outputs is not None:
            fields |= {**_labels(outputs), "problem_type": problem_type}
        model = self.load(fields, new_head=not self.has_classifier)
        model.config.__dict__.pop("thresholds", None)  # each study chooses its own
        return model

    def check_classifier(self) -> None:
        """Raise UserError where `load_classifier` would, without reading the weights."""
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            model = self.load(new_head=not self.has_classifier, only_check=True)
        if not self.is_bert:
            return
        try:
            as_bert(model)(torch.zeros(1, 2, dtype=torch.long))
        except Exception as error:  # of settings that nothing reads before
            raise self._useless(error) from error

    def load(
        self,
        fields: Mapping[str, object] | None = None,
        *,
        new_head: bool = False,
        only_check: bool = False,
    ) -> PreTrainedModel:
        """`loading.load` of transformers' own classifier, with these fields of its config."""
        layers = getattr(self.config, "num_hidden_layers", None) or 0
        if layers > len(self._weights):
            raise self.refusal(
                f"its config.json asks for {layers:,} layers, and its files have "
                f"{len(self._weights)} weights; mend config.json"
            )
        empty = self._empty()
        for name, value in (fields or {}).items():
            setattr(empty.config, name, value)
        return load(type(empty), self.name, empty.config, new_head=new_head, only_check=only_check)

    def _empty(self) -> PreTrainedModel:
        """Text classifier of its model type, without weights."""
        try:
            with torch.device("meta"), no_init_weights():
                model: PreTrainedModel = AutoModelForSequenceClassification.from_config(
                    deepcopy(self.config), trust_remote_code=False
                )
        except Exception as error:  # a config.json makes transformers raise almost anything
            if "Unrecognized configuration class" not in str(error):
                raise self._useless(error) from error
            raise self.refusal(
                "transformers has no classifier of texts of its kind "
                f"({first_line(error)}); use another model"
            ) from error
        return model

    def _useless(self, error: Exception) -> UserError:
        return self.refusal(
            f"its config.json cannot be used ({first_line(error)}); repair it, or save it again"
        )

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer lies beside the weights."""
        return any(find(self.name, name) for name in _TOKENIZERS)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer beside the weights. Raises UserError if it cannot be loaded."""
        return self._read_tokenizer[0]

    @cached_property
    def _read_tokenizer(self) -> tuple[PreTrainedTokenizerBase, Sequence[str]]:
        """Tokenizer with its warnings, as without some package it may read differently."""
        # Without its files transformers would make up a tokenizer that knows no word.
        if not self.has_tokenizer:
            raise self.refusal(f"it has no tokenizer ({_listed(_TOKENIZERS, 'or')})")
        try:
            with listening() as warned:
                tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                    self.name, trust_remote_code=False
                )
                tokenizer(_PROBE)
        except Exception as error:  # its files make transformers raise almost anything
            raise self.refusal(
                f"its tokenizer cannot be loaded ({first_line(error)}); "
                "save it once with `save_pretrained` of transformers, as tokenizer.json"
            ) from error
        tokenizer.init_kwargs.pop("auto_map", None)  # code of its own, which was not run
        if tokenizer.pad_token is None:  # as of many decoders; padding is masked, whatever it is
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        return tokenizer, [*warned]

    def notes(self) -> Iterator[str]:
        """Notes for the user: warnings, tokens without an embedding, weights that may hide code."""
        tokenizer, warned = self._read_tokenizer
        for warning in warned:
            yield f"the tokenizer of '{self.name}': {' '.join(warning.split())}"
        vocabulary = tokenizer.get_vocab().items()
        if beyond := [token for token, number in vocabulary if number >= self._vocabulary]:
            yield (
                f"the tokenizer of '{self.name}' has {len(beyond):,} tokens without an embedding in"
                f" the model: {a_few(sorted(beyond))}; a text with one is not answered: call "
                "model.resize_token_embeddings(len(tokenizer)), and save the model again"
            )
        if is_pickled(self.name):
            yield (
                f"the weights of '{self.name}' are read from {PICKLED} by torch's restricted "
                "loader, which runs no code"
            )

    @property
    def _vocabulary(self) -> float:
        """Number of tokens with embeddings; unbounded for CANINE."""
        return getattr(self.config.get_text_config(), "vocab_size", None) or math.inf

    def check_token(self, tokenizer: PreTrainedTokenizerBase, last: int) -> None:
        """Raise UserError if it has no embedding for this token id."""
        if last >= self._vocabulary:
            raise self.refusal(
                f"its vocab_size is {self._vocabulary:,}, but the tokenizer gives the token "
                f"{tokenizer.convert_ids_to_tokens(last)!r} the number {last:,}; call "
                "model.resize_token_embeddings(len(tokenizer)), and save the model again"
            )

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the classifier's outputs; UserError unless they are distinct and 0 to n - 1."""
        names = self.config.id2label or {}
        by_number = {int(number): str(name).strip() for number, name in names.items()}
        unique = len(set(by_number.values())) == len(by_number)
        if sorted(by_number) != list(range(len(by_number))) or not unique:
            wrong = [name for name, times in Counter(by_number.values()).items() if times > 1]
            raise self.refusal(
                f"the id2label in its config.json must name the outputs 0 to {len(by_number) - 1}, "
                f"each otherwise; it names {a_few(wrong or [*map(str, by_number)])}"
            )
        return [by_number[output] for output in range(len(by_number))]

    @property
    def unnamed(self) -> bool:
        """Whether the classifier's outputs have no names: LABEL_0, LABEL_1,"""
        return self.outputs == [f"LABEL_{output}" for output in range(len(self.outputs))]

    def label_order(self, label_names: Sequence[str], *, several: bool = False) -> list[int]:
        """Index of the classifier's output for each label. Raises UserError for an unknown one."""
        # They match by name. Names that nobody set (LABEL_0, LABEL_1, ...), labels 0, 1, ... and
        # the one output of a regression match by index.
        outputs, kind = self.outputs, self.config.problem_type
        if kind is not None and several != (kind == SEVERAL):
            gives, has = ("one label", "several") if several else ("several labels", "one")
            raise self.refusal(
                f"it gives a text {gives} (problem_type {kind}), and the task has {has}; use "
                "another model, or another Task.multi_label"
            )
        by_index = list(range(len(outputs)))
        if len(outputs) == len(label_names) == 1:
            return by_index
        if len(label_names) == 1:
            raise self.refusal(
                f"its classifier has {len(outputs)} outputs ({', '.join(outputs)}); a task whose "
                "labels are numbers needs one"
            )
        unknown = [name for name in label_names if name not in outputs]
        if not unknown:
            return [outputs.index(name) for name in label_names]
        numbered = list(label_names) == [str(output) for output in by_index]
        none_matches = len(outputs) == len(label_names) == len(unknown)
        if none_matches and (numbered or self.unnamed):
            return by_index
        raise self.refusal(
            f"it does not know the label(s) {', '.join(unknown)} of the task; it knows "
            f"{', '.join(outputs)}; rename those of the data, or id2label in its config.json"
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the settings that decide what it computes: 16 digits."""
        if self.is_bert:
            settings = settings_of(self.bert_config())
        else:
            settings = self.config.to_diff_dict()
            for name in ("_name_or_path", "dtype", "transformers_version", "architectures"):
                settings.pop(name, None)
        return content_key({"weights": fingerprint_of_weights(self.name), "settings": settings})

    @property
    def fingerprint_with_tokenizer(self) -> str:
        """Hash of `fingerprint`, the tokenizer's vocabulary, and its reading of a sample text."""
        # Not the tokenizer's files, which each version of transformers writes in its own way.
        tokenizer, side = self.tokenizer, self.tokenizer.truncation_side
        read = {"vocabulary": tokenizer.get_vocab(), "line": tokenizer(_PROBE)["input_ids"]}
        if side != "right":  # that of nearly all
            read["side"] = side
        return content_key({"model": self.fingerprint, **read})

    @property
    def license(self) -> str | None:
        """License in its model card, or None."""
        if (card := find(self.name, "README.md")) is None:
            return None
        try:
            named = (metadata_load(card) or {}).get("license")
        except Exception:  # its front matter is no mapping, or no YAML
            return None
        return named if isinstance(named, str) else None


def named_outputs(
    checkpoints: Sequence[Checkpoint], label_names: Sequence[str], *, several: bool
) -> list[str]:
    """Names of the labels for students: those of the first checkpoint with named outputs."""
    for checkpoint in checkpoints:
        if checkpoint.has_classifier and not checkpoint.unnamed:
            order = checkpoint.label_order(label_names, several=several)
            return [checkpoint.outputs[output] for output in order]
    return list(label_names)


def take_outputs(
    model: BertForSequenceClassification, order: Sequence[int], names: Sequence[str]
) -> None:
    """Select and rename outputs of a classifier, in this order."""
    for weight in model.classifier.parameters():
        weight.data = weight.data[list(order)]
    model.num_labels = model.classifier.out_features = len(order)
    for field, labels in _labels(names).items():
        setattr(model.config, field, labels)


def fingerprint_of(model: Classifier, made_of: Mapping[str, object] | None = None) -> str:
    """Hash the weights and settings of a model, and `made_of`: 16 hexadecimal digits."""
    settings = {"settings": settings_of(model.config), **(made_of or {})}
    digest = hashlib.sha256(content_key(settings).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _labels(names: Sequence[str]) -> dict[str, object]:
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers}


def _listed(names: Sequence[str], last: str) -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}"

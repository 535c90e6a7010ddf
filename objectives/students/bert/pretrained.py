"""Loading checkpoints: BERT, TinyBERT and MiniLM, and what `adapters` reads as a BERT; of all other
classifiers of transformers what a teacher needs, which only answers."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
"""A BERT with pooler and classifier, unpruned or cut."""


def is_cut(model: Classifier) -> TypeGuard[PrunedBertForSequenceClassification]:
    """Whether units may be gone from it."""
    return isinstance(model, PrunedBertForSequenceClassification)


SEVERAL: Final = "multi_label_classification"
"""What transformers calls the problem of a text with several labels."""
_TOKENIZERS = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("sentencepiece.bpe.model", "spiece.model", "spm.model"),
)
_PROBE = "The naïve CAFÉ didn't pay 3.50 for 中文, <b>re-tokenised</b>  twice"
"""What tokenizers of one vocabulary read differently: case, accents, characters, marks, spaces."""


def read_config(checkpoint: str) -> BertConfig:
    """The configuration of a checkpoint, a folder or a name on the hub, as that of a BERT. Raises
    UserError if nothing is found there, or if it is no encoder that computes what BERT does."""
    own = own_config(checkpoint)
    if differs := _no_bert(own):
        raise UserError(
            f"model '{checkpoint}': its architecture is {_architecture(own)} ({differs}); "
            "maskfront prunes encoders that compute what BERT does: "
            f"{_listed(list(ADAPTERS), 'and')}"
        )
    try:
        return own if isinstance(own, BertConfig) else ADAPTERS[own.model_type].config(own)
    except Exception as error:  # of fields that are no numbers
        raise _useless(checkpoint, error) from error


def is_bert(checkpoint: str) -> bool:
    """Whether it computes what BERT does, so that it can be cut and asked for its hidden states."""
    return not _no_bert(own_config(checkpoint))


def longest(checkpoint: str) -> int | None:
    """The most tokens that it reads; None if nothing bounds them."""
    config = read_config(checkpoint) if is_bert(checkpoint) else own_config(checkpoint)
    most = getattr(config, "max_position_embeddings", None)
    return most if most is not None and most > 0 else None  # XLNet says -1


def _no_bert(config: PreTrainedConfig) -> str:
    if config.model_type not in ADAPTERS:
        return f"'{config.model_type}'"
    if getattr(config, "is_decoder", False):
        return "a decoder"
    relative = getattr(config, "position_embedding_type", "absolute") != "absolute"
    return "with relative positions" if relative else ""


def load_classifier(
    checkpoint: str, outputs: Sequence[str] | None = None, problem_type: str | None = None
) -> PreTrainedModel:
    """Load transformers' own classifier for the checkpoint, float32 on the CPU; `outputs` renames
    outputs."""
    # Weights that it lacks are drawn from torch's random numbers.
    # Not all kinds know the attention that transformers would choose.
    fields: dict[str, object] = {} if is_bert(checkpoint) else {"_attn_implementation": "eager"}
    if outputs is not None:
        fields |= {**_labels(outputs), "problem_type": problem_type}
    model = load_whole(checkpoint, fields, new_head=not has_classifier(checkpoint))
    model.config.__dict__.pop("thresholds", None)  # each study chooses its own
    return model


def check_classifier(checkpoint: str) -> None:
    """Raise UserError where `load_classifier` would, without reading the weights."""
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers
        model = load_whole(checkpoint, new_head=not has_classifier(checkpoint), only_check=True)
    if not is_bert(checkpoint):
        return
    try:
        as_bert(model)(torch.zeros(1, 2, dtype=torch.long))
    except Exception as error:  # of settings that nothing reads before
        raise _useless(checkpoint, error) from error


def _useless(checkpoint: str, error: Exception) -> UserError:
    return UserError(
        f"model '{checkpoint}': its config.json cannot be used ({first_line(error)}); repair it, "
        "or save it again"
    )


def load_whole(
    checkpoint: str,
    fields: Mapping[str, object] | None = None,
    *,
    new_head: bool = False,
    only_check: bool = False,
) -> PreTrainedModel:
    """`loading.load` of transformers' own classifier for the checkpoint's kind, with these fields
    of its configuration."""
    config, files = own_config(checkpoint), stored(checkpoint)
    if (layers := getattr(config, "num_hidden_layers", None) or 0) > len(files):
        raise UserError(
            f"model '{checkpoint}': its config.json asks for {layers:,} layers, and its files have "
            f"{len(files)} weights; mend config.json"
        )
    empty = _empty(checkpoint, config)
    for name, value in (fields or {}).items():
        setattr(empty.config, name, value)
    kind = type(empty)
    return load(kind, checkpoint, empty.config, new_head=new_head, only_check=only_check)


def load_tokenizer(checkpoint: str) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside a checkpoint."""
    return read_tokenizer(checkpoint)[0]


def read_tokenizer(checkpoint: str) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """`load_tokenizer`, and a note for each warning: it may read otherwise without a package."""
    # Without its files transformers would make up a tokenizer that knows no word.
    if not has_tokenizer(checkpoint):
        raise UserError(f"model '{checkpoint}': it has no tokenizer ({_listed(_TOKENIZERS, 'or')})")
    try:
        with listening() as warned:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                checkpoint, trust_remote_code=False
            )
            tokenizer(_PROBE)
    except Exception as error:  # its files make transformers raise almost anything
        raise UserError(
            f"model '{checkpoint}': its tokenizer cannot be loaded ({first_line(error)}); "
            "save it once with `save_pretrained` of transformers, as tokenizer.json"
        ) from error
    tokenizer.init_kwargs.pop("auto_map", None)  # code of its own, which was not run
    if tokenizer.pad_token is None:  # as of many decoders; padding is masked, whatever it is
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer, [f"the tokenizer of '{checkpoint}': {' '.join(w.split())}" for w in warned]


def notes_on(checkpoint: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Notes for the user on weights that code could hide in, and on tokens without an embedding."""
    rows = _vocabulary(checkpoint)
    if beyond := [token for token, number in tokenizer.get_vocab().items() if number >= rows]:
        yield (
            f"the tokenizer of '{checkpoint}' has {len(beyond):,} tokens without an embedding in "
            f"the model: {a_few(sorted(beyond))}; a text with one is not answered: call "
            "model.resize_token_embeddings(len(tokenizer)), and save the model again"
        )
    if is_pickled(checkpoint):
        yield (
            f"the weights of '{checkpoint}' are read from {PICKLED} by torch's restricted loader, "
            "which runs no code"
        )


def _vocabulary(checkpoint: str) -> float:
    """How many tokens a checkpoint has embeddings of; CANINE reads any."""
    config = own_config(checkpoint)
    return getattr(config.get_text_config(), "vocab_size", None) or math.inf


def has_tokenizer(checkpoint: str) -> bool:
    """Whether there is one beside the checkpoint."""
    return any(find(checkpoint, name) for name in _TOKENIZERS)


def has_classifier(checkpoint: str) -> bool:
    """Whether the checkpoint was fine-tuned: it holds the weights of a classifier of texts. Raises
    UserError if it holds another kind of classifier, such as one of tokens."""
    config, names = own_config(checkpoint), stored(checkpoint).keys()
    if _architecture(config).endswith("ForSequenceClassification"):
        return True
    if known := ADAPTERS.get(config.model_type):
        head = {*known.head}
    else:
        model = _empty(checkpoint, config)
        head = {n for n in model.state_dict() if not n.startswith(f"{model.base_model_prefix}.")}
    if names >= head:
        return True
    if any(name.startswith("classifier.") for name in names):
        raise UserError(
            f"model '{checkpoint}': its classifier is that of {_architecture(config)}, not one of "
            "whole texts (...ForSequenceClassification); use the model without this head"
        )
    return False


def _empty(checkpoint: str, config: PreTrainedConfig) -> PreTrainedModel:
    """A classifier of texts of the checkpoint's kind, without weights."""
    try:
        with torch.device("meta"), no_init_weights():
            model: PreTrainedModel = AutoModelForSequenceClassification.from_config(
                config, trust_remote_code=False
            )
    except Exception as error:  # a config.json makes transformers raise almost anything
        if "Unrecognized configuration class" not in str(error):
            raise _useless(checkpoint, error) from error
        raise UserError(
            f"model '{checkpoint}': transformers has no classifier of texts of its kind "
            f"({first_line(error)}); use another model"
        ) from error
    return model


def has_mlm_head(checkpoint: str) -> bool:
    """Whether the checkpoint can fill in masked words: it holds the head of pretraining."""
    return "cls.predictions.transform.dense.weight" in stored(checkpoint)


def output_names(checkpoint: str) -> list[str]:
    """Names of the classifier's outputs in order, stripped; UserError unless they are distinct and
    0 to n-1."""
    names = own_config(checkpoint).id2label or {}
    known = {int(number): str(name).strip() for number, name in names.items()}
    if sorted(known) != list(range(len(known))) or len(set(known.values())) < len(known):
        wrong = [name for name, times in Counter(known.values()).items() if times > 1]
        raise UserError(
            f"model '{checkpoint}': the id2label in its config.json must name the outputs 0 to "
            f"{len(known) - 1}, each otherwise; it names {a_few(wrong or [*map(str, known)])}"
        )
    return [known[output] for output in range(len(known))]


def unnamed(checkpoint: str) -> bool:
    """Whether nobody named the outputs of the checkpoint's classifier: LABEL_0, LABEL_1, ..."""
    names = output_names(checkpoint)
    return names == [f"LABEL_{output}" for output in range(len(names))]


def label_order(checkpoint: str, label_names: Sequence[str], *, several: bool = False) -> list[int]:
    """Output of the checkpoint's classifier for each label; UserError for a label it does not
    know."""
    # They match by name. Names that nobody set (LABEL_0, LABEL_1, ...), labels 0, 1, ... and the
    # one output of a regression match by index.
    known = output_names(checkpoint)
    kind = own_config(checkpoint).problem_type
    if kind is not None and several != (kind == SEVERAL):
        gives, has = ("one label", "several") if several else ("several labels", "one")
        raise UserError(
            f"model '{checkpoint}': it gives a text {gives} (problem_type {kind}), and the task "
            f"has {has}; use another model, or another Task.multi_label"
        )
    by_index = list(range(len(known)))
    if len(known) == len(label_names) == 1:
        return by_index
    if len(label_names) == 1:
        raise UserError(
            f"model '{checkpoint}': its classifier has {len(known)} outputs "
            f"({', '.join(known)}); a task whose labels are numbers needs one"
        )
    unknown = [name for name in label_names if name not in known]
    if not unknown:
        return [known.index(name) for name in label_names]
    numbered = list(label_names) == [str(output) for output in by_index]
    alone = len(known) == len(label_names) == len(unknown)
    if alone and (numbered or unnamed(checkpoint)):
        return by_index
    raise UserError(
        f"model '{checkpoint}': it does not know the label(s) {', '.join(unknown)} of the task; it "
        f"knows {', '.join(known)}; rename those of the data, or id2label in its config.json"
    )


def named_outputs(
    checkpoints: Sequence[str], label_names: Sequence[str], *, several: bool = False
) -> list[str]:
    """Names that students give the labels: those of the first checkpoint whose outputs somebody
    named."""
    for checkpoint in filter(has_classifier, checkpoints):
        if not unnamed(checkpoint):
            known = output_names(checkpoint)
            return [known[one] for one in label_order(checkpoint, label_names, several=several)]
    return list(label_names)


def take_outputs(
    model: BertForSequenceClassification, order: Sequence[int], names: Sequence[str]
) -> None:
    """Leave a classifier these of its outputs, in this order and under these names."""
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


def fingerprint(checkpoint: str) -> str:
    """Hash the checkpoint's weights and the settings that decide what it computes: 16 digits."""
    if is_bert(checkpoint):
        settings = settings_of(read_config(checkpoint))
    else:
        settings = own_config(checkpoint).to_diff_dict()
        for name in ("_name_or_path", "dtype", "transformers_version", "architectures"):
            settings.pop(name, None)
    return content_key({"weights": fingerprint_of_weights(checkpoint), "settings": settings})


def fingerprint_with_tokenizer(checkpoint: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash `fingerprint`, the tokenizer's vocabulary and how it reads a line."""
    # Not the tokenizer's files, which each version of transformers writes in its own way.
    vocabulary, line = tokenizer.get_vocab(), tokenizer(_PROBE)["input_ids"]
    return content_key({"model": fingerprint(checkpoint), "vocabulary": vocabulary, "line": line})


def check_token(checkpoint: str, tokenizer: PreTrainedTokenizerBase, last: int) -> None:
    """Raise UserError if the checkpoint has no embedding of the token of this number."""
    known = _vocabulary(checkpoint)
    if last >= known:
        raise UserError(
            f"model '{checkpoint}': its vocab_size is {known:,}, but the tokenizer gives the token "
            f"{tokenizer.convert_ids_to_tokens(last)!r} the number {last:,}; call "
            "model.resize_token_embeddings(len(tokenizer)), and save the model again"
        )


def license_of(checkpoint: str) -> str | None:
    """License that the model card beside a checkpoint names, or None."""
    card = find(checkpoint, "README.md")
    if card is None:
        return None
    try:
        said = (metadata_load(card) or {}).get("license")
    except Exception:  # its front matter is no mapping, or no YAML
        return None
    return said if isinstance(said, str) else None


def own_config(checkpoint: str) -> PreTrainedConfig:
    """The configuration of a checkpoint of any kind. Raises UserError if there is none."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        config.get_text_config().to_dict()  # it may be anything
    except Exception as error:  # a config.json makes transformers raise almost anything
        refuse_adapter(checkpoint)
        reason = first_line(error).rstrip(":")
        problem = f"its config.json cannot be read ({reason}); repair it, or save it anew"
        if not Path(checkpoint).is_dir():
            where = "no such folder, and no model of that name could be loaded from the hub"
            problem = f"{where} ({reason}){did_you_mean(checkpoint, _folders_beside(checkpoint))}"
        elif not (Path(checkpoint) / "config.json").is_file():
            wanted = "name the folder that save_pretrained of transformers has written"
            problem = f"no config.json in the folder; {wanted}"
        raise UserError(f"model '{checkpoint}': {problem}") from error
    if getattr(config, "transformers_weights", None):
        raise UserError(
            f"model '{checkpoint}': its config.json names another file of weights "
            "(transformers_weights); remove that entry, and call the file model.safetensors"
        )
    if getattr(config, "quantization_config", None):
        raise UserError(
            f"model '{checkpoint}': its weights are quantised (quantization_config in its "
            "config.json); save it in float32: model.dequantize().save_pretrained(FOLDER)"
        )
    config._attn_implementation = None  # a config.json may name code of the hub
    config.chunk_size_feed_forward = 0  # texts are of all lengths, not of multiples
    return config


def _folders_beside(checkpoint: str) -> list[str]:
    beside = Path(checkpoint).parent
    return [str(one) for one in beside.iterdir() if one.is_dir()] if beside.is_dir() else []


def _labels(names: Sequence[str]) -> dict[str, object]:
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers}


def _architecture(config: PreTrainedConfig) -> str:
    names = config.architectures
    return str(names[0]) if isinstance(names, list) and names else config.model_type


def _listed(names: Sequence[str], last: str) -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}"

"""An exported model: a folder that transformers loads where maskfront is not installed; its ONNX
files scored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from objectives.engines.onnx_model import open_session, run_session
from objectives.errors import UserError, first_line
from objectives.measures.evaluate import metric_of, predict_with
from objectives.students.bert import pruned_bert
from objectives.students.bert.cutting import FOREIGN
from objectives.students.bert.exporting import plain_bert, save_model, save_tokenizer
from objectives.students.bert.pretrained import load_tokenizer
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.cells import cell_classifier
from objectives.workbench.inputs import Inputs

_PER_LAYER_NAMES = (
    *("qk_head_dim", "v_head_dim", "query_inputs", "key_inputs", "value_inputs"),
    *("weight_bits", "halves", "input_bits"),
)


def write_model(source: Path, out: Path) -> bool:
    """Write a trial's model and tokenizer to the folder `out`; returns whether it is a plain BERT.

    If not, the folder holds the files of the model's classes, and its configuration names them:
    transformers runs them for a user who passes `trust_remote_code=True`, and prefers the
    registered classes, without the flag, where objectives was imported.

    The configuration says whether its one output is a number, which a pipeline would else take for
    the logit of a class, and the tokenizer how many tokens the model takes.
    """
    model = load_model(source)
    model.config.problem_type = (
        "regression" if model.num_labels == 1 else "single_label_classification"
    )
    for name in FOREIGN:
        model.config.__dict__.pop(name, None)
    plain, code = None, cell_classifier.CODE
    if isinstance(model, PrunedBertForSequenceClassification):
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            plain = plain_bert(model)
        code = pruned_bert.CODE
    if plain is None:
        file = code[0].stem  # `save_pretrained` puts it beside the model
        model.config.auto_map = {
            "AutoConfig": f"{file}.{type(model.config).__name__}",
            "AutoModelForSequenceClassification": f"{file}.{type(model).__name__}",
        }
        if code is pruned_bert.CODE:
            for name in _PER_LAYER_NAMES:  # who does not know these wants them said globally
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


def load_model(folder: Path) -> PreTrainedModel:
    """The classifier of an exported folder, in evaluation mode on the CPU; runs no code of it.

    Raises UserError where there is none.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, SafetensorError) as error:
        reason = first_line(error)
        if folder.is_dir() and not (folder / "config.json").is_file():
            reason = "it has no config.json"
        elif not folder.exists() and isinstance(error, OSError):
            reason = "there is no such folder, and no such model in the hub's cache"
        raise UserError(f"'{folder}': no classifier could be loaded from it ({reason})") from error
    model.train(False)
    return model


def score_onnx(
    file: Path, inputs: Inputs, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[float]:
    """The task's metric of an ONNX file on the selection and the held-out rows of a study's data,
    in the teacher's tokens or in those of the model's own tokenizer."""
    run = partial(run_session, open_session(file))
    splits = inputs.judging(tokenizer)
    return [metric_of(predict_with(run, split), split, inputs.task.metric) for split in splits]

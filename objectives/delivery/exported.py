"""Exported models: folders that transformers loads without maskfront, and scores of ONNX files."""

from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import custom_object_save

from objectives.engines.onnx_model import open_session, run_session
from objectives.errors import UserError
from objectives.measures.evaluate import less_thresholds, metric_of, predict_with
from objectives.students.bert.cutting import FOREIGN
from objectives.students.bert.exporting import save_model, save_tokenizer
from objectives.students.bert.pretrained import SEVERAL, Checkpoint
from objectives.students.families import family_of
from objectives.students.family import Family
from objectives.workbench.inputs import Inputs


def write_model(source: Path, out: Path) -> tuple[Family, bool]:
    """Write a trial's model and tokenizer to the folder `out`; returns the family of the model, and
    whether transformers has a class for it.

    If not, the folder holds the files of the model's classes: transformers runs them for a user who
    passes `trust_remote_code=True`, and prefers the registered classes where objectives was
    imported. The configuration says whether its one output is a number, which a pipeline would else
    take for the logit of a class, and the tokenizer how many tokens the model takes.
    """
    model = load_model(source)
    family = family_of(model)
    if model.config.problem_type != SEVERAL:
        number = model.config.num_labels == 1
        model.config.problem_type = "regression" if number else "single_label_classification"
    for name in FOREIGN:
        model.config.__dict__.pop(name, None)
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers
        model = family.exported(model)
    plain = type(model).__module__.startswith("transformers.")
    if not plain:
        classes = {"AutoConfig": model.config, "AutoModelForSequenceClassification": model}
        model.config.auto_map = {  # the name of the file, and that of the class
            auto: f"{type(instance).__module__.rpartition('.')[2]}.{type(instance).__name__}"
            for auto, instance in classes.items()
        }
        custom_object_save(model, out)  # the files of its class
    save_model(model, out)
    tokenizer = Checkpoint(str(source)).tokenizer
    longest = model.config.max_position_embeddings
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
    if tokenizer.is_fast:  # what a study cut its texts to is nobody else's limit
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    save_tokenizer(tokenizer, out)
    return family, plain


def load_model(folder: Path) -> PreTrainedModel:
    """Load an exported classifier on the CPU in eval mode, without its code. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"'{folder}': there is no such folder of a model")
    with torch.random.fork_rng(devices=[]):
        return Checkpoint(str(folder)).load()


def score_onnx(
    file: Path,
    inputs: Inputs,
    tokenizer: PreTrainedTokenizerBase | None = None,
    thresholds: list[float] | None = None,
) -> list[float]:
    """Metrics on the selection and held-out rows, in the students' tokens or in the model's own."""
    run, metric = partial(run_session, open_session(file)), inputs.task.metric
    splits = {split.role: split for split in inputs.judging(tokenizer)}
    logits = {role: predict_with(run, split) for role, split in splits.items()}
    if inputs.task.own_thresholds:
        logits, _ = less_thresholds(logits, splits["select"], metric, thresholds)
    return [metric_of(logits[role], split, metric) for role, split in splits.items()]

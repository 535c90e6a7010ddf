"""The teacher: the user's fine-tuned classifier, or a pretrained model that is fine-tuned first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import islice

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel

from objectives.cache import atomic_write, content_key, made_anew
from objectives.combining.members import CONFIDENCE
from objectives.device import Precision, autocast, matmul_dtype, to_device
from objectives.errors import UserError, check_ranges, check_types, first_line
from objectives.measures.bootstrap import Interval, resampled_metrics
from objectives.measures.evaluate import answers_of
from objectives.metric import Labels, Metric, metric_value
from objectives.session import Session
from objectives.students.bert import pretrained
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.exporting import save_model
from objectives.text.data import Split
from objectives.text.task import LabelledText
from objectives.training.losses import task_loss
from objectives.training.optimisation import linear_schedule, weight_optimizer


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A checkpoint of BERT or of one of its variants (`adapters.ADAPTERS`), and how it is
    fine-tuned if it has no classifier yet.

    A checkpoint that holds a classifier is the teacher as it is, and must know the task's labels. A
    label of its own that the task does not have is left out: of each text it says which of the
    task's labels is the likeliest, and its probabilities are those given that it is one of them.
    """

    checkpoint: str
    """Folder, or name on the hub."""
    epochs: int = 3
    """Passes over the train split. >= 1."""
    batch_size: int = 32
    """Sequences in a batch. >= 1."""
    learning_rate: float = 5e-5
    """Peak of AdamW's rate, > 0: 10% linear warm-up, then linear decay to 0."""
    precision: Precision = "auto"
    """Of the matmuls of the fine-tuning. "auto" is bfloat16 where the device has instructions for
    it, else float32."""

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(
            self,
            epochs=(self.epochs >= 1, ">= 1"),
            batch_size=(self.batch_size >= 1, ">= 1"),
            learning_rate=(self.learning_rate > 0, "> 0"),
        )


def load_teacher(
    teacher: Teacher, text: LabelledText, train: Split, *, session: Session, fine_tune: bool = True
) -> BertForSequenceClassification:
    """The fine-tuned classifier, in evaluation mode on the device: the task's labels in its order.

    They bear the names that a fine-tuned checkpoint has for them, if anybody gave it any.
    Fine-tuning runs once: the result lies in the cache, named by all that decides it. Text without
    a role does not. Without `fine_tune` it is what a launch left there, on whatever device that
    was. Raises UserError for a label that the checkpoint does not know, and if nothing was left.
    """
    label_names = text.label_names
    if pretrained.has_classifier(teacher.checkpoint):
        return ready(teacher, label_names, session.device)
    ingredients = {
        **asdict(teacher),
        "precision": str(matmul_dtype(teacher.precision, session.device)),
        "checkpoint": pretrained.fingerprint(teacher.checkpoint),
        "data": text.fingerprint_of_roles,
        "tokens": train.fingerprint,
        "max_length": train.max_length,
        "labels": list(label_names),
        "seed": session.seed,
    }
    folder = session.cache / content_key(ingredients)
    if not fine_tune:
        others = [{**ingredients, "precision": f"torch.{name}"} for name in ("bfloat16", "float32")]
        for kept in (folder, *(session.cache / content_key(other) for other in others)):
            if kept.is_dir():
                return load_frozen(str(kept), session.device)
        raise UserError(
            f"'{session.cache}' does not hold the teacher that was fine-tuned from "
            f"'{teacher.checkpoint}'; launch the study again with the same number of trials to "
            "fine-tune it again, or restore the folder from a copy"
        )
    if folder.is_dir():
        try:
            return load_frozen(str(folder), session.device)
        except (OSError, ValueError, SafetensorError) as error:
            session.progress.note(made_anew(folder, first_line(error)))
    model = _fine_tune(teacher, label_names, train, session)
    with atomic_write(folder) as unfinished:
        save_model(model, unfinished)
        pretrained.load_tokenizer(teacher.checkpoint).save_pretrained(unfinished)
    return load_frozen(str(folder), session.device)


def ready(
    teacher: Teacher, label_names: Sequence[str], device: str
) -> BertForSequenceClassification:
    """`load_teacher` of a checkpoint that holds a classifier."""
    order = pretrained.label_order(teacher.checkpoint, label_names)
    names = [pretrained.output_names(teacher.checkpoint)[output] for output in order]
    model = load_frozen(teacher.checkpoint, device)
    unnamed = pretrained.unnamed(teacher.checkpoint)
    pretrained.take_outputs(model, order, label_names if unnamed else names)
    return model


def check_labels(teacher: Teacher, label_names: Sequence[str]) -> None:
    """Raise UserError for a label of the task that a fine-tuned teacher does not know."""
    if pretrained.has_classifier(teacher.checkpoint):
        pretrained.label_order(teacher.checkpoint, label_names)


def check_answers(teacher: Teacher, *answers: Tensor | float) -> None:
    """Raise UserError if a logit of the teacher, or a metric of its logits, is nan or infinite."""
    if all(torch.as_tensor(answer).isfinite().all() for answer in answers):
        return
    rate = f"Teacher.learning_rate, now {teacher.learning_rate:g}"
    remedy = f"fine-tune it at a lower learning rate ({rate}), or repair the checkpoint"
    if pretrained.has_classifier(teacher.checkpoint):
        remedy = "repair its checkpoint"
    raise UserError(
        f"teacher '{teacher.checkpoint}': its answers are not finite (nan or infinite); {remedy}"
    )


def teacher_notes(teacher: Teacher, label_names: Sequence[str]) -> list[str]:
    """What a user should know of a teacher that has a classifier and knows the task's labels."""
    if not pretrained.has_classifier(teacher.checkpoint):
        return []
    notes = []
    known = pretrained.output_names(teacher.checkpoint)
    by_name = set(label_names) <= set(known) or known == [f"LABEL_{name}" for name in label_names]
    if len(label_names) > 1 and not by_name:
        pairs = ", ".join(f"{a} is {b}" for a, b in zip(known, label_names, strict=True))
        notes.append(
            f"the labels of the teacher '{teacher.checkpoint}' are matched by position: {pairs}; "
            "if that is wrong, name them in its config.json (id2label)"
        )
    idle = [f.name for f in fields(teacher) if f.default not in (MISSING, getattr(teacher, f.name))]
    if idle:
        notes.append(
            f"the teacher '{teacher.checkpoint}' has a classifier and is not fine-tuned: "
            f"{', '.join(f'Teacher.{name}' for name in idle)} does nothing"
        )
    return notes


def weak_teacher_note(
    teacher: Teacher, metric: Metric, value: float, interval: Interval, labels: Labels, classes: int
) -> str | None:
    """What a user should know of a teacher that may be no better than one answer for all rows;
    `value` is its metric on the selection split, which has these labels."""
    constant = 0.0  # of a correlation
    if metric in ("accuracy", "f1"):
        likely = {int(np.bincount(labels).argmax()), 1}
        answers = (np.full_like(labels, answer) for answer in likely)
        constant = max(metric_value(metric, labels, a, classes=classes) for a in answers)
    if interval[0] > constant:
        return None
    remedy = "take another one"
    if not pretrained.has_classifier(teacher.checkpoint):
        remedy = f"fine-tune it longer (Teacher.epochs, now {teacher.epochs})"
    return (
        f"the teacher may have learnt nothing: its {metric} on the selection split is {value:.4f} "
        f"(95% interval from {interval[0]:.4f}), and one answer for all rows has {constant:.4f}; "
        f"{remedy}, before students learn from it"
    )


def words_note(
    teacher: Teacher, metric: Metric, select: Split, logits: Tensor, words: Labels
) -> str | None:
    """What a user should know of a teacher whose `logits` (rows, C) on the selection split are not
    clearly better than the answers (rows,) of a linear model on `words`: with 95% confidence, by a
    paired bootstrap over the rows."""
    labels, classes, both = select.labels, logits.shape[-1], (answers_of(logits, select), words)
    own, linear = (metric_value(metric, labels, answers, classes=classes) for answers in both)
    gained, without = (resampled_metrics(metric, labels, answers, classes) for answers in both)
    if own == 1 or np.quantile(gained - without, 1 - CONFIDENCE) > 0:
        return None
    epochs, rate = "", ""
    if not pretrained.has_classifier(teacher.checkpoint):
        epochs = f" (Teacher.epochs, now {teacher.epochs})"
        rate = f" (Teacher.learning_rate, now {teacher.learning_rate:g})"
    return (
        f"the teacher is not clearly better than words alone: its {metric} on the selection split "
        f"is {own:.4f}, that of a linear model on tf-idf {linear:.4f}; fine-tune it longer{epochs},"
        f" at another rate{rate} or on more rows (Task.train), or take another checkpoint, before "
        "students learn from it"
    )


def load_frozen(folder: str, device: str) -> BertForSequenceClassification:
    """A checkpoint as a BERT in evaluation mode; without a classifier it gets one that knows
    nothing."""
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers, even to overwrite them
        model = as_bert(pretrained.load_classifier(folder))
    model.eval().requires_grad_(False)
    return to_device(model, device)


def _fine_tune(
    teacher: Teacher, label_names: Sequence[str], train: Split, session: Session
) -> PreTrainedModel:
    """Every weight of transformers' own model of the checkpoint trained on the labels, with its
    dropout."""
    seed, device, progress = session.seed, session.device, session.progress
    cuda = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):  # the classifier's start and the dropout are seeded
        torch.manual_seed(seed)
        problem_type = "regression" if train.regression else None
        model = pretrained.load_classifier(teacher.checkpoint, label_names, problem_type)
        to_device(model, device).train()
        dtype = matmul_dtype(teacher.precision, device)
        steps = teacher.epochs * -(-len(train) // teacher.batch_size)
        optimizer = weight_optimizer(dict(model.named_parameters()), teacher.learning_rate)
        schedule = linear_schedule(optimizer, steps)
        progress.begin("fine-tune the teacher", steps)
        for batch in islice(train.shuffled(teacher.batch_size, seed, device), steps):
            inputs = batch.inputs
            if not hasattr(model.config, "type_vocab_size"):
                del inputs["token_type_ids"]
            with autocast(dtype, device):
                logits = model(**inputs, return_dict=True).logits.float()
            task_loss(logits[None], batch.labels).sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            progress.advance()
    return model

"""What every trial of a study shares: data, teacher, student, cost. Prepared once a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from objectives import pretrained
from objectives import task as tasks
from objectives.architecture import BertShape
from objectives.augmentation import Augmentation, Augmenter, augment, read_augmentation
from objectives.cost import Flops
from objectives.data import Split
from objectives.device import to_device
from objectives.errors import UserError
from objectives.evaluate import count_parameters, predict, score
from objectives.pruned_bert import shape_of
from objectives.search_method import Progress
from objectives.task import LabelledText, Metric, Task
from objectives.teacher import Teacher, check_labels, load_teacher


@dataclass(frozen=True, eq=False)
class Problem:
    """What a search method works on. It sees no other data than `train` and `alpha`."""

    student: BertForSequenceClassification
    """Where every student starts: the teacher, or the layers of it that the student keeps."""
    train: Split
    """The train rows, then their augmented copies if the study has any."""
    teacher_logits: Tensor
    """(rows of train, C): what the teacher says of each row of `train`, on the device."""
    alpha: Split
    cost: Flops
    """FLOPs of the student, cut or masked."""
    flops_full: int
    """FLOPs of the unpruned model, the teacher: ratio 1."""
    device: str
    memory: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    """What a method works out once for all its populations, under a key of its own."""


@dataclass(frozen=True)
class Score:
    """What a classifier is worth, measured on the model itself."""

    metric: float
    heldout_metric: float
    flops: int
    params: int


@dataclass(frozen=True, eq=False)
class Workbench:
    """A problem, and what scores and saves its results: no search method sees this."""

    problem: Problem
    select: Split
    heldout: Split
    metric: Metric
    tokenizer: PreTrainedTokenizerBase
    unpruned: Score
    unpruned_shape: BertShape

    def score(self, model: pretrained.Classifier, flops: int) -> Score:
        """Metric on the selection and the held-out split, and the size of the model."""
        device = self.problem.device
        return Score(
            metric=score(model, self.select, self.metric, device),
            heldout_metric=score(model, self.heldout, self.metric, device),
            flops=flops,
            params=count_parameters(model),
        )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the user named, read and checked before anything is written or trained."""

    task: Task
    teacher: Teacher
    student_layers: tuple[int, ...] | None
    seq_len: int
    text: LabelledText
    tokenizer: PreTrainedTokenizerBase
    label_order: Sequence[int]
    checkpoint_fingerprint: str
    augmenter: Augmenter | None


def read_inputs(
    task: Task,
    teacher: Teacher,
    student_layers: tuple[int, ...] | None,
    seq_len: int | None,
    augmentation: Augmentation | None = None,
) -> Inputs:
    """Read data and checkpoint. Raises UserError for whatever does not fit together."""
    config = pretrained.read_config(teacher.checkpoint)
    for name, length in (
        ("task.max_length", task.max_length),
        ("seq_len", 1 if seq_len is None else seq_len),
    ):
        if not 1 <= length <= config.max_position_embeddings:
            raise UserError(
                f"{name} is {length}; '{teacher.checkpoint}' takes 1 to "
                f"{config.max_position_embeddings} tokens"
            )
    layers = config.num_hidden_layers
    if student_layers is not None and (
        not student_layers
        or list(student_layers) != sorted(set(student_layers))
        or student_layers[0] < 0
        or student_layers[-1] >= layers
    ):
        raise UserError(
            f"student_layers is {student_layers}; it must be ascending layers of the teacher, "
            f"0 to {layers - 1}"
        )
    text = tasks.load(task)
    return Inputs(
        task=task,
        teacher=teacher,
        student_layers=student_layers,
        seq_len=task.max_length if seq_len is None else seq_len,
        text=text,
        tokenizer=pretrained.load_tokenizer(teacher.checkpoint),
        label_order=check_labels(teacher, text.label_names),
        checkpoint_fingerprint=pretrained.fingerprint(teacher.checkpoint),
        augmenter=None if augmentation is None else read_augmentation(augmentation),
    )


def prepare(
    inputs: Inputs, *, cache: Path, seed: int, device: str, progress: Progress
) -> Workbench:
    """Tokenise, fine-tune the teacher if it needs it, and score the unpruned model.

    Augmented rows come after the teacher: it learns from the rows of the task alone.
    """
    task, text = inputs.task, inputs.text
    splits = {
        role: tasks.tokenise(
            text.roles[role], role, inputs.tokenizer, task.max_length, inputs.label_order
        )
        for role in tasks.ROLES
    }
    teacher = load_teacher(
        inputs.teacher,
        text.label_names,
        splits["train"],
        data_fingerprint=text.fingerprint,
        cache=cache,
        seed=seed,
        device=device,
        progress=progress,
    )
    if inputs.augmenter is not None:
        train = augment(
            inputs.augmenter,
            text.roles,
            cache=cache,
            seed=seed,
            device=device,
            progress=progress,
        )
        splits["train"] = tasks.tokenise(
            train, "train", inputs.tokenizer, task.max_length, inputs.label_order
        )
    progress.begin("score the unpruned model", 1)
    cost = Flops(shape_of(teacher.config), inputs.seq_len)
    unpruned = Score(
        metric=score(teacher, splits["select"], task.metric, device),
        heldout_metric=score(teacher, splits["heldout"], task.metric, device),
        flops=cost.full,
        params=count_parameters(teacher),
    )
    teacher_logits = predict(teacher, splits["train"], device).to(device)
    progress.advance()
    student = _keep_layers(teacher, inputs.student_layers)
    return Workbench(
        problem=Problem(
            student=student,
            train=splits["train"],
            teacher_logits=teacher_logits,
            alpha=splits["alpha"],
            cost=Flops(shape_of(student.config), inputs.seq_len),
            flops_full=cost.full,
            device=device,
        ),
        select=splits["select"],
        heldout=splits["heldout"],
        metric=task.metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        unpruned_shape=cost.shape,
    )


def _keep_layers(
    teacher: BertForSequenceClassification, layers: tuple[int, ...] | None
) -> BertForSequenceClassification:
    if layers is None:
        return teacher
    config = type(teacher.config).from_dict(
        {**teacher.config.to_dict(), "num_hidden_layers": len(layers)}
    )
    with torch.random.fork_rng(devices=[]):  # its own weights are overwritten below
        student = BertForSequenceClassification(config)
    weights = {
        name: weight
        for name, weight in teacher.state_dict().items()
        if not name.startswith("bert.encoder.layer.")
    }
    for place, layer in enumerate(layers):
        for name, weight in teacher.bert.encoder.layer[layer].state_dict().items():
            weights[f"bert.encoder.layer.{place}.{name}"] = weight
    student.load_state_dict(weights)
    student.eval().requires_grad_(False)
    return to_device(student, str(teacher.device))

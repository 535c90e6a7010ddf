"""What every trial of a study shares: data, teacher, student, cost. Prepared once a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from objectives import pretrained
from objectives import task as tasks
from objectives.architecture import Architecture, BertShape, Widths
from objectives.augmentation import Augmentation, Augmenter, augment, read_augmentation
from objectives.bootstrap import Interval
from objectives.cost import Cost, CostName, Flops, Params, Units
from objectives.cutting import shape_of
from objectives.data import Split
from objectives.errors import UserError
from objectives.evaluate import (
    EVALUATION_BATCH,
    count_parameters,
    score,
    score_with_interval,
)
from objectives.fidelity import FULL, Fidelity
from objectives.latency import load_latency
from objectives.odd_labels import odd_labels
from objectives.odd_texts import odd_texts
from objectives.roles import load
from objectives.search_method import Progress
from objectives.student import check_student, keep_layers, load_student
from objectives.task import LabelledText, Metric, Task
from objectives.teacher import (
    Teacher,
    check_answers,
    check_labels,
    load_teacher,
    teacher_notes,
    weak_teacher_note,
)
from objectives.teacher_logits import kept_logits

_LATENCY_BATCH = 1
"""Sequences in the forward pass whose time is the cost "latency"."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a search method works on: it learns from `train` and `alpha` alone."""

    teacher: BertForSequenceClassification
    """Fine-tuned, frozen, in evaluation mode, on the device."""
    student: BertForSequenceClassification
    """Where every student starts: the teacher, some layers of it, or a checkpoint of its own."""
    train: Split
    """The train rows, then their augmented copies if the study has any."""
    teacher_logits: Tensor
    """(rows of train, C): what the teacher says of each row of `train`, on the device."""
    alpha: Split
    cost: Cost
    """What the study counts, of the student, cut or masked."""
    cost_full: float
    """Ratio 1: that of the teacher, or of the unpruned student if it is another checkpoint."""
    seq_len: int
    """Tokens at which FLOPs are taken, whatever the study counts."""
    student_is_new: bool
    """The student is a checkpoint of its own, which does not know the task yet."""
    select_metric: Callable[[pretrained.Classifier], float]
    """The metric of a cut model on the selection split: for the choice among checkpoints of one
    architecture, never for a gradient."""
    device: str
    cache: Path
    """Folder for what is made once: see `cache`."""
    memory: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    """What a method works out once for all its populations, under a key of its own."""


@dataclass(frozen=True)
class Score:
    """What a classifier is worth, measured on the model itself."""

    metric: float
    interval: Interval
    """95% bootstrap interval of `metric`."""
    heldout_metric: float
    heldout_interval: Interval
    cost: float
    """In the unit of the study's cost."""
    flops: int
    """Whatever the study counts."""
    params: int
    widths: Mapping[str, tuple[int, ...]]
    """How much is left of each layer, by the names of `Widths`."""


@dataclass(frozen=True, eq=False)
class Workbench:
    """A problem, and what scores and saves its results: no search method sees this."""

    problem: Problem
    select: Split
    heldout: Split
    metric: Metric
    tokenizer: PreTrainedTokenizerBase
    unpruned: Score
    """Of the teacher; its widths are those of the model of ratio 1."""
    flops: Flops
    """Of the student, cut or masked."""
    flops_full: int
    """FLOPs of the model of ratio 1."""
    notes: tuple[str, ...]
    """What a user should know of rows, labels and teacher."""

    def score(self, model: pretrained.Classifier, architecture: Architecture) -> Score:
        """Metric on the selection and the held-out split, and the size of the student `model`."""
        return _score(
            model,
            self.select,
            self.heldout,
            self.metric,
            self.problem.device,
            cost=self.problem.cost.exact(architecture),
            flops=int(self.flops.exact(architecture)),
            widths=_widths(architecture, self.flops.shape),
        )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the user named, read and checked before anything is written or trained."""

    task: Task
    teacher: Teacher
    student_layers: tuple[int, ...] | None
    student: str | None
    seq_len: int
    text: LabelledText
    tokenizer: PreTrainedTokenizerBase
    checkpoint_fingerprint: str
    student_fingerprint: str | None
    augmenter: Augmenter | None

    def shapes(self) -> tuple[BertShape, BertShape]:
        """Those of the student and of the teacher, but for the labels."""
        teacher = shape_of(pretrained.read_config(self.teacher.checkpoint))
        if self.student is not None:
            return shape_of(pretrained.read_config(self.student)), teacher
        layers = teacher.layers if self.student_layers is None else len(self.student_layers)
        return replace(teacher, layers=layers), teacher

    def split(self, role: str) -> Split:
        """The rows of a role as tokens."""
        return tasks.tokenise(self.text.roles[role], role, self.tokenizer, self.task.max_length)


def read_inputs(
    task: Task,
    teacher: Teacher,
    *,
    student_layers: tuple[int, ...] | None = None,
    student: str | None = None,
    seq_len: int | None = None,
    augmentation: Augmentation | None = None,
) -> Inputs:
    """Read data and checkpoints. Raises UserError for whatever does not fit together."""
    for checkpoint in (teacher.checkpoint, student):
        if checkpoint is not None:
            _check_lengths(checkpoint, task.max_length, seq_len)
    layers = pretrained.read_config(teacher.checkpoint).num_hidden_layers
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
    text = load(task)
    check_labels(teacher, text.label_names)
    if student is not None:
        check_student(student, teacher.checkpoint, text.label_names)
    tokenizer = pretrained.load_tokenizer(teacher.checkpoint)
    for checkpoint in (teacher.checkpoint, student):
        if checkpoint is not None:
            _check_segments(checkpoint, tokenizer, task)
    return Inputs(
        task=task,
        teacher=teacher,
        student_layers=student_layers,
        student=student,
        seq_len=task.max_length if seq_len is None else seq_len,
        text=text,
        tokenizer=tokenizer,
        checkpoint_fingerprint=pretrained.fingerprint_with_tokenizer(teacher.checkpoint, tokenizer),
        student_fingerprint=None if student is None else pretrained.fingerprint(student),
        augmenter=None if augmentation is None else read_augmentation(augmentation),
    )


def _check_lengths(checkpoint: str, max_length: int, seq_len: int | None) -> None:
    longest = pretrained.read_config(checkpoint).max_position_embeddings
    for name, length in (("task.max_length", max_length), ("seq_len", seq_len)):
        if length is not None and not 1 <= length <= longest:
            raise UserError(f"{name} is {length}; '{checkpoint}' takes 1 to {longest} tokens")


def _check_segments(checkpoint: str, tokenizer: PreTrainedTokenizerBase, task: Task) -> None:
    known = pretrained.read_config(checkpoint).type_vocab_size
    types = tokenizer(*("a" for _ in task.columns)).get("token_type_ids") or [0]
    if max(types) >= known:
        raise UserError(
            f"model '{checkpoint}': its type_vocab_size is {known}, but the tokenizer gives tokens "
            f"of pairs the type {max(types)}; name a model that tells two texts apart"
        )


def _check_tokens(inputs: Inputs, splits: Iterable[Split]) -> None:
    """Tokens of the rows and of their padding: what else the tokenizer knows does not matter."""
    last = max(max(s.pad_token_id, *map(max, filter(None, s.input_ids))) for s in splits)
    for checkpoint in (inputs.teacher.checkpoint, inputs.student):
        if checkpoint is not None:
            pretrained.check_token(checkpoint, inputs.tokenizer, last)


def prepare(
    inputs: Inputs,
    *,
    cache: Path,
    seed: int,
    device: str,
    progress: Progress,
    cost: CostName = "flops",
    spaces: tuple[str, ...] = (),
    fidelity: Fidelity = FULL,
) -> Workbench:
    """Tokenise, fine-tune the teacher if it needs it, score it, and load the student.

    Augmented rows come after the teacher: it learns from the rows of the task alone, and from all
    whatever the `fidelity`. `cost` is what the study counts, `spaces` the kinds of units that its
    methods search: "units" counts those.
    """
    task = inputs.task
    splits = {role: inputs.split(role) for role in tasks.ROLES}
    _check_tokens(inputs, splits.values())
    notes = [
        inputs.text.read,
        *_truncated(splits),
        *odd_texts(task, inputs.text),
        *odd_labels(inputs.text),
        *teacher_notes(inputs.teacher, inputs.text.label_names),
    ]
    for note in notes:
        progress.note(note)
    teacher = load_teacher(
        inputs.teacher,
        inputs.text.label_names,
        splits["train"],
        data_fingerprint=inputs.text.fingerprint,
        cache=cache,
        seed=seed,
        device=device,
        progress=progress,
    )
    train, alpha = _of_students(
        inputs, splits, fidelity, cache=cache, seed=seed, device=device, progress=progress
    )
    student = _student(inputs, teacher, seed)
    cost_of_teacher, cost_of_student = (
        _cost(cost, model, inputs.seq_len, spaces, cache=cache, device=device, progress=progress)
        for model in (teacher, student)
    )
    cost_of_unpruned = cost_of_teacher if inputs.student is None else cost_of_student

    def flops_of(own: Cost) -> Flops:
        return Flops(own.shape, inputs.seq_len)

    batches = sum(-(-len(splits[role]) // EVALUATION_BATCH) for role in ("select", "heldout"))
    progress.begin("score the teacher", batches)
    unpruned = _score(
        teacher,
        splits["select"],
        splits["heldout"],
        task.metric,
        device,
        cost=cost_of_teacher.full,
        flops=int(flops_of(cost_of_teacher).full),
        widths=_widths(Architecture.full(cost_of_unpruned.shape), cost_of_unpruned.shape),
        progress=progress,
    )
    check_answers(inputs.teacher, unpruned.metric, unpruned.heldout_metric)
    weak = weak_teacher_note(
        inputs.teacher,
        task.metric,
        unpruned.metric,
        unpruned.interval,
        splits["select"].labels,
        len(inputs.text.label_names),
    )
    if weak:
        progress.note(weak)
        notes.append(weak)
    teacher_logits = kept_logits(teacher, train, cache=cache, device=device, progress=progress)
    check_answers(inputs.teacher, teacher_logits)
    return Workbench(
        problem=Problem(
            teacher=teacher,
            student=student,
            train=train,
            teacher_logits=teacher_logits.to(device),
            alpha=alpha,
            cost=cost_of_student,
            cost_full=cost_of_unpruned.full,
            student_is_new=inputs.student is not None,
            select_metric=partial(score, split=splits["select"], metric=task.metric, device=device),
            device=device,
            cache=cache,
            seq_len=inputs.seq_len,
        ),
        select=splits["select"],
        heldout=splits["heldout"],
        metric=task.metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        flops=flops_of(cost_of_student),
        flops_full=int(flops_of(cost_of_unpruned).full),
        notes=tuple(notes),
    )


def _of_students(
    inputs: Inputs,
    splits: Mapping[str, Split],
    fidelity: Fidelity,
    *,
    cache: Path,
    seed: int,
    device: str,
    progress: Progress,
) -> tuple[Split, Split]:
    """What the students learn from, train and alpha: with copies of the text, cut down by the
    fidelity."""
    texts = dict(inputs.text.roles)
    if inputs.augmenter is not None:
        texts["train"] = augment(
            inputs.augmenter,
            inputs.text.roles,
            cache=cache,
            seed=seed,
            device=device,
            progress=progress,
        )
    length = fidelity.length(inputs.task.max_length)

    def split(role: str) -> Split:
        if texts[role] is inputs.text.roles[role] and length == inputs.task.max_length:
            return splits[role]
        tokenised = tasks.tokenise(texts[role], role, inputs.tokenizer, length)
        _check_tokens(inputs, [tokenised])
        return tokenised

    return fidelity.train(split("train"), seed), split("alpha")


def _score(
    model: pretrained.Classifier,
    select: Split,
    heldout: Split,
    metric: Metric,
    device: str,
    *,
    cost: float,
    flops: int,
    widths: Mapping[str, tuple[int, ...]],
    progress: Progress | None = None,
) -> Score:
    """The metric of a model on both splits, beside its sizes."""
    on_select, interval = score_with_interval(model, select, metric, device, progress)
    on_heldout, heldout_interval = score_with_interval(model, heldout, metric, device, progress)
    return Score(
        metric=on_select,
        interval=interval,
        heldout_metric=on_heldout,
        heldout_interval=heldout_interval,
        cost=cost,
        flops=flops,
        params=count_parameters(model),
        widths=widths,
    )


def _cost(
    name: CostName,
    model: BertForSequenceClassification,
    seq_len: int,
    spaces: tuple[str, ...],
    *,
    cache: Path,
    device: str,
    progress: Progress,
) -> Cost:
    """What a study of this cost counts of `model`, cut or masked."""
    shape = shape_of(model.config)
    if name == "params":
        embeddings = sum(weight.numel() for weight in model.bert.embeddings.parameters())
        return Params(shape, embeddings)
    if name == "units":
        return Units(shape, spaces)
    if name == "latency":
        return load_latency(
            model,
            batch=_LATENCY_BATCH,
            seq_len=seq_len,
            cache=cache,
            device=device,
            progress=progress,
        )
    return Flops(shape, seq_len)


def _widths(architecture: Architecture, shape: BertShape) -> dict[str, tuple[int, ...]]:
    layers = architecture.widths(shape)
    return {name: tuple(getattr(layer, name) for layer in layers) for name in Widths._fields}


def _student(
    inputs: Inputs, teacher: BertForSequenceClassification, seed: int
) -> BertForSequenceClassification:
    if inputs.student is not None:
        return load_student(inputs.student, teacher, inputs.text.label_names, seed)
    if inputs.student_layers is not None:
        return keep_layers(teacher, inputs.student_layers)
    return teacher


def _truncated(splits: Mapping[str, Split]) -> Iterator[str]:
    counts = [
        f"{role} {split.truncated:,} of {len(split):,}"
        for role, split in splits.items()
        if split.truncated
    ]
    if counts:
        longest = next(iter(splits.values())).max_length
        yield (
            f"texts longer than {longest} tokens (Task.max_length) are cut off: {', '.join(counts)}"
        )

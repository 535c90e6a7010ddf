"""A problem, and what scores its results: prepared once a launch, hidden from the searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.engines.serving import serve
from objectives.measures.bits import BitOps, Bytes, bytes_of
from objectives.measures.bootstrap import Interval
from objectives.measures.cost import Cost, CostName, Flops, Params, Units
from objectives.measures.evaluate import (
    EVALUATION_BATCH,
    Objective,
    count_parameters,
    divergence,
    metric_with_interval,
    nearness,
    predict,
    predict_with,
    score,
)
from objectives.measures.latency import load_latency
from objectives.measures.measured import WrongCostError, measured_costs
from objectives.problem import Problem
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.student import keep_layers, load_student
from objectives.students.families import family_for
from objectives.students.family import Architecture
from objectives.text import task as tasks
from objectives.text.augmentation import augment
from objectives.text.data import Split
from objectives.text.odd_labels import odd_labels
from objectives.text.odd_texts import odd_texts
from objectives.text.task import Examples, Metric
from objectives.text.vocabulary import Vocabulary
from objectives.training.population import EMBEDDINGS
from objectives.training.teacher_logits import kept_logits
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import Inputs, check_tokens
from objectives.workbench.teacher import (
    check_answers,
    load_teacher,
    teacher_notes,
    weak_teacher_note,
)


@dataclass(frozen=True)
class Score:
    """What a classifier is worth, measured on the model itself."""

    metric: float
    interval: Interval
    """95% bootstrap interval of `metric`."""
    heldout_metric: float
    heldout_interval: Interval
    divergence: float
    """From the teacher on the selection split: see `measures.evaluate.divergence`."""
    heldout_divergence: float
    cost: float
    """In the unit of the study's cost."""
    flops: int
    """Whatever the study counts."""
    params: int
    bytes: int
    """Of the file of its weights."""
    widths: Mapping[str, tuple[int, ...]]
    """`Architecture.sizes`: how much is left of each layer."""


@dataclass(frozen=True, eq=False)
class Workbench:
    """A problem, and what scores and saves its results: no search method sees this."""

    problem: Problem
    select: Split
    heldout: Split
    texts: Mapping[str, Examples]
    """The text of "select" and "heldout", for models of a smaller vocabulary."""
    teacher_answers: Mapping[str, Tensor]
    """Logits (rows, C) of the teacher on "select" and "heldout", in float32."""
    engine: Engine
    """What models are served with, and so scored with."""
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

    def score(self, model: PreTrainedModel, architecture: Architecture) -> Score:
        """Metric and divergence on the selection and the held-out split, and the size of the
        student `model`.

        Raises WrongCostError if the model does not cost what a search predicts of its architecture.
        """
        measured = measured_costs(model, self.flops.seq_len)
        costs = (self.flops, self.problem.counted)
        predicted = family_for(architecture).predicted(architecture, costs)
        for unit, number in measured.items():
            if number != predicted.get(unit, number):
                raise WrongCostError(
                    f"the model has {number:,} {unit}, its architecture {predicted[unit]:,}; a "
                    "method cuts the model that it returns to the architecture beside it"
                )
        splits = self._judging(architecture)
        return _score(
            _answers(self.engine, model, splits, self.problem.device),
            self.teacher_answers,
            splits,
            self.metric,
            params=measured["params"],
            bytes=measured["bytes"],
            cost=(predicted | measured)[self.problem.counted.unit],
            flops=measured[self.flops.unit],
            widths=architecture.sizes(),
        )

    def tokenizer_of(self, architecture: Architecture) -> PreTrainedTokenizerBase:
        """The tokenizer that goes with a model of this architecture."""
        pieces = family_for(architecture).vocabulary(architecture)
        return self.tokenizer if pieces is None else self.problem.vocabulary.tokenizer_of(pieces)

    def _judging(self, architecture: Architecture) -> dict[str, Split]:
        """The selection and the held-out split in the tokens of such a model."""
        splits = {"select": self.select, "heldout": self.heldout}
        tokenizer = self.tokenizer_of(architecture)
        if tokenizer is self.tokenizer:
            return splits
        return {
            role: tasks.tokenise(self.texts[role], role, tokenizer, split.max_length)
            for role, split in splits.items()
        }


def prepare(
    inputs: Inputs,
    session: Session,
    *,
    cost: CostName = "flops",
    engine: Engine = "eager",
    latency_batch: int = 1,
    objective: Objective = "metric",
    spaces: tuple[str, ...] = (),
    fidelity: Fidelity = FULL,
) -> Workbench:
    """Tokenise, fine-tune the teacher if it needs it, score it, and load the student.

    Augmented and unlabelled rows come after the teacher: it learns from the labelled rows alone,
    and from all whatever the `fidelity`. `cost` is what the study counts, "latency" by passes of
    `latency_batch` sequences in the `engine`; `objective` is what it compares students by, `spaces`
    the kinds of units that its methods search: "units" counts those.
    """
    task, device, progress = inputs.task, session.device, session.progress
    splits = {role: inputs.split(role) for role in tasks.ROLES}
    check_tokens(inputs, splits.values())
    notes = [
        inputs.text.read,
        *_truncated(splits),
        *odd_texts(task, inputs.text),
        *(odd_labels(inputs.text) if task.labelled else ()),
        *teacher_notes(inputs.teacher, inputs.text.label_names),
    ]
    for note in notes:
        progress.note(note)
    teacher = load_teacher(
        inputs.teacher,
        inputs.text.label_names,
        splits["train"],
        data_fingerprint=inputs.text.fingerprint,
        session=session,
    )
    answers = _of_teacher(teacher, splits, session)
    if not task.labelled:
        inputs = inputs.answered(answers | {"alpha": predict(teacher, splits["alpha"], device)})
        splits = {
            role: replace(split, labels=inputs.text.roles[role].labels)
            for role, split in splits.items()
        }
    train, alpha = _of_students(inputs, splits, fidelity, session=session)
    student = _student(inputs, teacher, session.seed)
    cost_of_teacher, cost_of_student = (
        load_latency(
            model,
            batch=latency_batch,
            seq_len=inputs.seq_len,
            engine=engine,
            session=session,
        )
        if cost == "latency"
        else _cost(cost, model, inputs.seq_len, spaces)
        for model in (teacher, student)
    )
    cost_of_unpruned = cost_of_teacher if inputs.student is None else cost_of_student

    def flops_of(own: Cost) -> Flops:
        return Flops(own.shape, inputs.seq_len)

    def budget_of(own: Cost) -> Cost:
        return flops_of(own) if isinstance(own, Bytes | BitOps) else own

    judging = {role: splits[role] for role in answers}
    unpruned = _score(
        answers if BITS[engine] == FULL_BITS else _answers(engine, teacher, judging, device),
        answers,
        judging,
        task.metric,
        params=count_parameters(teacher),
        bytes=bytes_of(teacher.state_dict()),
        cost=cost_of_teacher.full,
        flops=int(flops_of(cost_of_teacher).full),
        widths=BertArchitecture.full(cost_of_unpruned.shape).sizes(),
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
    teacher_logits = kept_logits(teacher, train, session=session)
    check_answers(inputs.teacher, teacher_logits)
    train = _all_labelled(train, teacher_logits)
    select = splits["select"]
    return Workbench(
        problem=Problem(
            teacher=teacher,
            student=student,
            train=train,
            teacher_logits=teacher_logits.to(device),
            alpha=alpha,
            cost=budget_of(cost_of_student),
            cost_full=budget_of(cost_of_unpruned).full,
            counted=cost_of_student,
            counted_full=cost_of_unpruned.full,
            student_is_new=inputs.student is not None,
            student_layers=inputs.student_layers,
            select_worth=partial(score, split=select, metric=task.metric, device=device)
            if objective == "metric"
            else partial(nearness, split=select, teacher=answers["select"], device=device),
            vocabulary=Vocabulary(inputs.tokenizer, train),
            device=device,
            cache=session.cache,
            seq_len=inputs.seq_len,
        ),
        select=select,
        heldout=splits["heldout"],
        texts={role: inputs.text.roles[role] for role in judging},
        teacher_answers=answers,
        engine=engine,
        metric=task.metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        flops=flops_of(cost_of_student),
        flops_full=int(flops_of(cost_of_unpruned).full),
        notes=tuple(notes),
    )


def _of_teacher(
    teacher: BertForSequenceClassification, splits: Mapping[str, Split], session: Session
) -> dict[str, Tensor]:
    """Its logits (rows, C) of "select" and "heldout"."""
    judging = {role: splits[role] for role in ("select", "heldout")}
    batches = sum(-(-len(split) // EVALUATION_BATCH) for split in judging.values())
    session.progress.begin("score the teacher", batches)
    return {
        role: predict(teacher, split, session.device, session.progress)
        for role, split in judging.items()
    }


def _all_labelled(train: Split, teacher_logits: Tensor) -> Split:
    """Rows without a label have the teacher's."""
    lacking = train.labels < 0
    if train.regression or not lacking.any():
        return train
    return replace(train, labels=np.where(lacking, teacher_logits.argmax(-1), train.labels))


def _of_students(
    inputs: Inputs,
    splits: Mapping[str, Split],
    fidelity: Fidelity,
    *,
    session: Session,
) -> tuple[Split, Split]:
    """What the students learn from, train and alpha: with copies of the text and with text without
    labels, cut down by the fidelity."""
    texts = dict(inputs.text.roles)
    if inputs.augmenter is not None:
        texts["train"] = augment(
            inputs.augmenter,
            inputs.text.roles,
            session=session,
        )
    if more := inputs.text.unlabelled:
        rows = texts["train"]
        none = np.full(len(more), -1, dtype=rows.labels.dtype)
        texts["train"] = Examples([*rows.texts, *more], np.concatenate([rows.labels, none]))
    length = fidelity.length(inputs.task.max_length)

    def split(role: str) -> Split:
        if texts[role] is inputs.text.roles[role] and length == inputs.task.max_length:
            return splits[role]
        tokenised = tasks.tokenise(texts[role], role, inputs.tokenizer, length)
        check_tokens(inputs, [tokenised])
        return tokenised

    return fidelity.train(split("train"), session.seed), split("alpha")


def _answers(
    engine: Engine, model: PreTrainedModel, splits: Mapping[str, Split], device: str
) -> dict[str, Tensor]:
    """Logits (rows, C) of each split as an engine gives them; those of float32 are torch's."""
    if BITS[engine] == FULL_BITS:
        return {role: predict(model, split, device) for role, split in splits.items()}
    with TemporaryDirectory() as scratch:
        (served,) = serve(engine, {scratch: model}, Path(scratch), torch.get_num_threads(), device)
        return {role: predict_with(served.run, split) for role, split in splits.items()}


def _score(
    answers: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    splits: Mapping[str, Split],
    metric: Metric,
    *,
    cost: float,
    flops: int,
    params: int,
    bytes: int,
    widths: Mapping[str, tuple[int, ...]],
) -> Score:
    """What a model's answers are worth beside the teacher's, both logits (rows, C) of "select" and
    "heldout", and its sizes."""
    worth = {role: metric_with_interval(answers[role], splits[role], metric) for role in splits}
    far = {role: divergence(answers[role], teacher[role], splits[role]) for role in splits}
    return Score(
        metric=worth["select"][0],
        interval=worth["select"][1],
        heldout_metric=worth["heldout"][0],
        heldout_interval=worth["heldout"][1],
        divergence=far["select"],
        heldout_divergence=far["heldout"],
        cost=cost,
        flops=flops,
        params=params,
        bytes=bytes,
        widths=widths,
    )


def _cost(
    name: CostName,
    model: BertForSequenceClassification,
    seq_len: int,
    spaces: tuple[str, ...],
) -> Cost:
    """What is counted of `model`, cut or masked."""
    shape = shape_of(model.config)
    if name == "params":
        embeddings = sum(weight.numel() for weight in model.bert.embeddings.parameters())
        return Params(shape, embeddings, model.config.vocab_size)
    if name == "bytes":
        state = model.state_dict().items()
        return Bytes(shape, {n: tuple(w.shape) for n, w in state if n.startswith(EMBEDDINGS)})
    if name == "bitops":
        return BitOps(shape, seq_len)
    if name == "units":
        return Units(shape, spaces)
    return Flops(shape, seq_len)


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

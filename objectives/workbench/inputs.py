"""Inputs of a study, read and checked before anything is written or trained; its rows as tokens."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import Checked, UserError, a_few, check_ranges
from objectives.problem import NoBert
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.student import check_layers, same_tokens
from objectives.text.augmentation import Augmentation, Augmenter, augment, read_augmentation
from objectives.text.data import Split, no_labels
from objectives.text.roles import load_text
from objectives.text.task import ROLES, Examples, LabelledText, Task, tokenise
from objectives.workbench.answering import (
    Answering,
    BertAnswers,
    GivenAnswers,
    load_classifiers,
    read_given,
)
from objectives.workbench.fidelity import Fidelity
from objectives.workbench.teacher import Teacher, load_teacher

JUDGING = ("select", "heldout")
"""The roles that say what a model is worth."""


@dataclass(frozen=True, kw_only=True)
class Beside(Checked):
    """Another task of a study, for methods that learn several."""

    task: Task
    """Its text. Its name, of letters, digits, '-', '_' and '.', is what its numbers and its models
    are called by."""
    teacher: Teacher
    """Its classifier, which reads the same tokens as that of the study."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, teacher=(not self.teacher.trials, "one without trials"))


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a study, read and checked before anything is written or trained."""

    task: Task
    teacher: Teacher
    student_layers: tuple[int, ...] | None
    student: str | None
    seq_len: int
    text: LabelledText
    tokenizer: PreTrainedTokenizerBase
    """Tokenizer of the students."""
    only_answers: str
    """Reason why the teacher is no BERT that reads the students' tokens; empty if it is one."""
    given: GivenAnswers | None
    """Precomputed answers of a teacher that is no model."""
    checkpoint_fingerprint: str
    student_fingerprint: str | None
    notes: tuple[str, ...]
    """Notes for the user on how checkpoints were read."""
    augmenter: Augmenter | None
    beside: Mapping[str, "Inputs"] = field(default_factory=dict)
    """Extra tasks by name."""

    @property
    def no_teacher(self) -> NoBert:
        """Stand-in for a teacher that only answers."""
        return NoBert(
            f"it learns from the inside of the teacher, but '{self.teacher.name}' "
            f"{self.only_answers}; learn its answers alone (stages with the loss 'prediction', "
            "hidden_weight=0), or choose another method"
        )

    @property
    def no_student(self) -> NoBert:
        """Stand-in for a student, if there is none to cut."""
        return NoBert(
            f"it cuts a BERT, but the teacher '{self.teacher.name}' {self.only_answers}; set "
            "Study.student to a BERT, or choose a method of cells, such as CellSearch"
        )

    @property
    def start(self) -> Checkpoint | None:
        """Checkpoint of the student, if it is not the teacher's."""
        return Checkpoint(self.student) if self.student else None

    def configs(self) -> tuple[PreTrainedConfig, PreTrainedConfig]:
        """Configurations of student and teacher, without labels; a `NoBert` for a missing one."""
        student = self.start and self.start.bert_config()
        if self.only_answers:
            return student or self.no_student, self.no_teacher  # type: ignore[return-value]
        (checkpoint,) = self.teacher.models
        student = student or checkpoint.bert_config()
        if self.student_layers is not None:
            student.num_hidden_layers = len(self.student_layers)
        return student, checkpoint.bert_config()

    def answering(
        self, train: Split | None, session: Session, *, fine_tune: bool = True
    ) -> Answering:
        """Answering of the rows; a checkpoint without a classifier is fine-tuned on `train`."""
        if self.given is not None:
            return self.given
        if self.only_answers:
            return load_classifiers(self.teacher, self.text, self.task, session)
        model = load_teacher(self.teacher, self.text, train, session=session, fine_tune=fine_tune)
        return BertAnswers(model, session, self.teacher.engine)

    def split(self, role: str, tokenizer: PreTrainedTokenizerBase | None = None) -> Split:
        """Tokenise the rows of a role, with the students' tokenizer or another."""
        rows, reader = self.text.roles[role], tokenizer or self.tokenizer
        return tokenise(rows, role, reader, self.task.max_length, self.task.truncation)

    def selection(self, answering: Answering) -> Tensor:
        """Logits (rows, C) of a teacher on the selection rows, on the CPU."""
        return answering.answer(self.split("select"), self.text.roles["select"])

    def judging(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Split]:
        """Selection and held-out rows of `split`; without labels the teacher's answers are them."""
        splits = [self.split(role, tokenizer) for role in JUDGING]
        if self.task.labelled:
            return splits
        return [split.answered(self._answers[split.role]) for split in splits]

    @cached_property
    def _answers(self) -> dict[str, Tensor]:
        with TemporaryDirectory() as cache:  # it has a classifier: nothing is fine-tuned
            answering = self.answering(None, Session(cache=Path(cache)))
            roles = self.text.roles
            return {role: answering.answer(self.split(role), roles[role]) for role in JUDGING}


def read_inputs(
    task: Task,
    teacher: Teacher,
    *,
    student_layers: tuple[int, ...] | None = None,
    student: str | None = None,
    seq_len: int | None = None,
    augmentation: Augmentation | None = None,
    beside: Sequence[Beside] = (),
) -> Inputs:
    """Read data and checkpoints. Raises UserError for whatever does not fit together."""
    start, models = Checkpoint(student) if student else None, teacher.models
    for checkpoint in filter(None, (*models, start)):
        check_lengths(checkpoint, task.max_length, seq_len)
        checkpoint.check_classifier()
    why = only_answers_of(teacher, student)
    _check_settings(teacher, why)
    if not models:
        _check_given(student, augmentation)
    reader = start if why and start else models[0]
    if student_layers is not None:
        if why:
            raise UserError(
                f"student_layers is {student_layers}, but there is no teacher to take layers of: "
                f"'{reader.name}' {why}; set Study.student"
            )
        check_layers(student_layers, reader.bert_config().num_hidden_layers)
    own_fingerprint = None
    if start is not None:
        start.bert_config()  # refuses what cannot be cut
        own_fingerprint = start.fingerprint_with_tokenizer if why else start.fingerprint
    text, given = _named(task, teacher, load_text(task))
    for checkpoint in [c for c in (*models, start) if c is not None and c.has_classifier]:
        checkpoint.label_order(text.label_names, several=text.several)
    notes = [note for model in dict.fromkeys((reader, *models)) for note in model.notes()]
    for checkpoint in filter(None, {reader, start}):
        _check_segments(checkpoint, reader.tokenizer, task)
    settled = teacher
    if teacher.checkpoint and teacher.fine_tuned:
        settled = teacher.settled(len(text.roles["train"].texts), teacher.checkpoint)
    return Inputs(
        task=task,
        teacher=settled,
        student_layers=student_layers,
        student=student,
        seq_len=task.max_length if seq_len is None else seq_len,
        text=text,
        tokenizer=reader.tokenizer,
        only_answers=why,
        given=given,
        checkpoint_fingerprint=given.fingerprint
        if given
        else " + ".join(model.fingerprint_with_tokenizer for model in models),
        student_fingerprint=own_fingerprint,
        notes=tuple(notes),
        augmenter=None if augmentation is None else read_augmentation(augmentation),
        beside={
            extra.task.name: _read_beside(extra, teacher, student, augmentation) for extra in beside
        },
    )


def _check_settings(teacher: Teacher, why: str) -> None:
    """Raise UserError for settings that do not fit the teacher's models."""
    models = teacher.models
    if teacher.engine != "eager" and not (models and all(model.is_bert for model in models)):
        raise UserError(
            f"Teacher.engine is '{teacher.engine}', which is for models that compute what BERT "
            f"does, but '{teacher.name}' {why}; leave it out"
        )
    if teacher.trials and not teacher.fine_tuned:
        raise UserError(
            f"Teacher.trials is {teacher.trials}, but '{teacher.name}' has a classifier and is not "
            "fine-tuned; leave trials out, or name a checkpoint without a classifier"
        )


def only_answers_of(teacher: Teacher, student: str | None) -> str:
    """Reason why a teacher is no BERT that reads the students' tokens; empty if it is one."""
    if not teacher.checkpoints:
        return "has its answers alone"
    if teacher.ensemble:
        return "is an ensemble"
    (checkpoint,) = teacher.models
    if not checkpoint.is_bert:
        return f"is no BERT ('{checkpoint.config.model_type}')"
    if student is not None and not same_tokens(checkpoint, Checkpoint(student)):
        return f"reads other tokens than the student '{student}'"
    return ""


def _check_given(student: str | None, augmentation: Augmentation | None) -> None:
    if student is None:
        raise UserError(
            "Teacher.answers has no tokens; set Study.student to a BERT, whose tokens students read"
        )
    if augmentation is not None:
        raise UserError(
            "Study.augmentation makes texts that Teacher.answers has no answers to; leave it out"
        )


def _named(
    task: Task, teacher: Teacher, text: LabelledText
) -> tuple[LabelledText, GivenAnswers | None]:
    """Text of the task, with the teacher's names of lacking labels; and precomputed answers."""
    given, names, roles = None, text.label_names, dict(text.roles)
    if not teacher.checkpoints:
        given, names = read_given(teacher, task, text)
    elif not task.labelled:
        names = _classes_of(teacher, task)
    for role, rows in text.roles.items() if task.multi_label and not task.labelled else ():
        roles[role] = replace(rows, labels=np.full((len(rows.texts), len(names)), -1, np.int8))
    return replace(text, label_names=names, roles=roles), given


def _read_beside(
    extra: Beside, teacher: Teacher, student: str | None, augmentation: Augmentation | None
) -> Inputs:
    """Read an extra task. Raises UserError if its teacher reads other tokens than the study's."""
    for each in (extra.teacher, teacher):
        if why := only_answers_of(each, student):
            raise UserError(
                f"Study.beside: the teacher '{each.name}' {why}; tasks together need BERTs that "
                "read the same tokens"
            )
    models = (*extra.teacher.models, *teacher.models)
    sizes = [model.bert_config() for model in models]
    read = {(s.type_vocab_size, s.max_position_embeddings) for s in sizes}
    if len(read) > 1 or not same_tokens(*models):
        raise UserError(
            f"Study.beside: the teacher '{models[0].name}' of task '{extra.task.name}' does not "
            f"read the tokens of the study's '{models[1].name}'; take teachers of one pretrained "
            "model"
        )
    return read_inputs(extra.task, extra.teacher, augmentation=augmentation)


def _classes_of(teacher: Teacher, task: Task) -> list[str]:
    """Classes of the teacher, for a task without labels."""
    # A member without a classifier would be fine-tuned on labels that are not there.
    plain = [model for model in teacher.models if not model.has_classifier]
    checkpoint = (*plain, *teacher.models)[0]
    names = [] if plain else checkpoint.outputs
    if len(names) < 2:
        kind = "gives a number" if names else "has no classifier yet"
        raise task.refusal(
            f"metric 'agreement' compares classes with the teacher's, but '{checkpoint.name}' "
            f"{kind}; use a fine-tuned classifier, or a metric with labels"
        )
    return names


def check_lengths(checkpoint: Checkpoint, max_length: int, seq_len: int | None = None) -> None:
    """Raise UserError for more tokens than the checkpoint reads."""
    longest = checkpoint.longest
    for name, length in (("task.max_length", max_length), ("seq_len", seq_len)):
        if length is not None and longest is not None and not 1 <= length <= longest:
            raise UserError(f"{name} is {length}; '{checkpoint.name}' takes 1 to {longest} tokens")


def _check_segments(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, task: Task) -> None:
    if not checkpoint.is_bert:
        return
    size = checkpoint.bert_config().type_vocab_size
    types = tokenizer(*("a" for _ in task.columns)).get("token_type_ids") or [0]
    if max(types) >= size:
        raise checkpoint.refusal(
            f"its type_vocab_size is {size}, but for pairs of texts the "
            f"tokenizer uses token type {max(types)}; use a model that reads pairs"
        )


def check_tokens(inputs: Inputs, splits: Iterable[Split]) -> None:
    """Refuse tokens of the rows and their padding that a checkpoint does not know."""
    last = max(split.last_token for split in splits)
    read = () if inputs.only_answers and inputs.student else inputs.teacher.models[:1]
    for checkpoint in filter(None, (*read, inputs.start)):
        checkpoint.check_token(inputs.tokenizer, last)


def notes_on_rows(inputs: Inputs, splits: Mapping[str, Split]) -> Iterator[str]:
    """Notes for the user: number of rows, of truncated texts, and suspicious labels."""
    yield inputs.text.read
    cut_off = [
        f"{role} {split.truncated:,} of {len(split):,}"
        for role, split in splits.items()
        if split.truncated
    ]
    if cut_off:
        yield (
            f"texts longer than {inputs.task.max_length} tokens (max_length) are cut off: "
            f"{', '.join(cut_off)}"
        )
    if inputs.task.labelled:
        yield from odd_labels(inputs.text)


def rows_of_students(
    inputs: Inputs, splits: Mapping[str, Split], fidelity: Fidelity, session: Session
) -> tuple[Split, Examples, Split]:
    """Rows that students learn from: train, also as text, and alpha; augmented, then reduced."""
    roles = inputs.text.roles
    train = roles["train"]
    if inputs.augmenter is not None:
        train = augment(inputs.augmenter, roles, session)
    if more := inputs.text.unlabelled:
        labels = np.concatenate([train.labels, no_labels(len(more), train.labels)])
        train = Examples([*train.texts, *more], labels)
    length = min(fidelity.max_length or inputs.task.max_length, inputs.task.max_length)

    def split(role: str, rows: Examples) -> Split:
        if rows is roles[role] and length == inputs.task.max_length:
            return splits[role]
        tokens = tokenise(rows, role, inputs.tokenizer, length, inputs.task.truncation)
        check_tokens(inputs, [tokens])
        return tokens

    alpha = replace(split("alpha", roles["alpha"]), labels=splits["alpha"].labels)
    tokens, rows = split("train", train), share_of(len(train.texts), fidelity.data, session.seed)
    some = Examples([train.texts[row] for row in rows], train.labels[rows])
    return (tokens if len(rows) == len(tokens) else tokens.at(rows)), some, alpha


def share_of(rows: int, share: float, seed: int) -> NDArray[np.int64]:
    """Draw the indices of a share in (0, 1] of the rows, ascending."""
    if share == 1:
        return np.arange(rows)
    count = max(1, round(share * rows))
    return np.sort(np.random.default_rng(seed).permutation(rows)[:count])


def features_of(train: Split, select: Split, teacher: float) -> dict[str, float]:
    """Meta-features of a task, after auto-sklearn (Feurer et al. 2015)."""
    # Logarithms of its labelled rows and of their mean length; classes, 1 for numbers; their
    # entropy in nats; and the teacher's metric.
    counts = np.unique(select.labels, axis=0, return_counts=True)[1]
    shares = np.ones(1) if select.regression else counts / counts.sum()
    return {
        "rows": math.log(len(train)),
        "length": math.log(float(train.lengths.mean())),
        "classes": float(len(shares)),
        "entropy": float(-(shares * np.log(shares)).sum()),
        "teacher": teacher,
    }


def odd_labels(text: LabelledText) -> Iterator[str]:
    """Notes on labels that look like ids or like one another, and on labels that lack rows."""
    if text.roles["train"].labels.dtype.kind == "f":
        return
    names, ids = text.label_names, list(map(str, range(len(text.label_names))))
    if set(names) != set(ids) and all(name.lstrip("-").isdecimal() for name in names):
        yield (
            f"the labels are ids other than 0 to {ids[-1]} ({a_few(names)}): each is a class, "
            f"and output 0 stands for {names[0]}; if one marks rows without a label, leave them out"
        )
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault("".join(name.split()).lower(), []).append(name)
    alike = [" and ".join(map(repr, same)) for same in spellings.values() if len(same) > 1]
    if alike:
        more = f" and {len(alike) - 3:,} more such" if len(alike) > 3 else ""
        yield (
            "labels that differ only in blanks or case are separate classes: "
            f"{', '.join(alike[:3])}{more}; write them alike if they mean the same"
        )
    counts = {}
    for role in ROLES:
        labels = text.roles[role].labels
        several = labels.ndim == 2
        counts[role] = (labels == 1).sum(0) if several else np.bincount(labels, None, len(names))
    of_train, parts = counts.pop("train"), []
    for what, rows in (("selection", counts["select"]), ("held-out", counts["heldout"])):
        lost = np.flatnonzero((rows == 0) & (of_train > 0)).tolist()
        if lost:
            parts.append(f"no {what} row has {a_few([names[label] for label in lost])}")
    if parts:
        yield f"labels of so few rows that no metric can judge them: {', '.join(parts)}"
    unseen = np.flatnonzero((of_train == 0) & (sum(counts.values()) > 0))
    if len(unseen):
        where = {role: rows[unseen].sum() for role, rows in counts.items()}
        elsewhere = ", ".join(f"{role} {rows:,}" for role, rows in where.items() if rows)
        shown = a_few([names[label] for label in unseen.tolist()])
        have = "label {} has" if len(unseen) == 1 else "labels {} have"
        yield (
            f"{have.format(shown)} no train rows, but other rows ({elsewhere}): leave these out, "
            "correct their labels, or add train rows"
        )

"""What the user named, read and checked before anything is written or trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import UserError, check_types
from objectives.measures.evaluate import predict
from objectives.students.bert import pretrained
from objectives.students.bert.student import check_layers, check_student
from objectives.text import task as tasks
from objectives.text.augmentation import Augmentation, Augmenter, read_augmentation
from objectives.text.data import Split
from objectives.text.roles import load
from objectives.text.task import LabelledText, Task
from objectives.workbench.teacher import Teacher, check_labels, ready

JUDGING = ("select", "heldout")
"""The roles that say what a model is worth."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Another task of a study, for methods that learn several."""

    task: Task
    """Its text. Its name, of letters, digits, '-', '_' and '.', is what its numbers and its models
    are called by."""
    teacher: Teacher
    """Its classifier, which reads the same tokens as that of the study."""

    def __post_init__(self) -> None:
        check_types(self)


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
    beside: Mapping[str, Inputs] = field(default_factory=dict)
    """The other tasks, by their names."""

    def configs(self) -> tuple[PreTrainedConfig, PreTrainedConfig]:
        """Those of the student and of the teacher, but for the labels."""
        teacher = pretrained.read_config(self.teacher.checkpoint)
        student = pretrained.read_config(self.student or self.teacher.checkpoint)
        if self.student_layers is not None:
            student.num_hidden_layers = len(self.student_layers)
        return student, teacher

    def split(self, role: str, tokenizer: PreTrainedTokenizerBase | None = None) -> Split:
        """The rows of a role as tokens: the teacher's, or those of another tokenizer."""
        rows, own = self.text.roles[role], tokenizer or self.tokenizer
        return tasks.tokenise(rows, role, own, self.task.max_length)

    def judging(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Split]:
        """The selection and the held-out rows as `split` has them. Where the task has no labels,
        theirs are what the teacher says."""
        splits = [self.split(role, tokenizer) for role in JUDGING]
        if self.task.labelled:
            return splits
        return [split.answered(self._answers[split.role]) for split in splits]

    @cached_property
    def _answers(self) -> dict[str, Tensor]:
        teacher = ready(self.teacher, self.text.label_names, "cpu")
        return {role: predict(teacher, self.split(role), "cpu") for role in JUDGING}


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
    checkpoints = [one for one in (teacher.checkpoint, student) if one is not None]
    for checkpoint in checkpoints:
        _check_lengths(checkpoint, task.max_length, seq_len)
    if student_layers is not None:
        check_layers(student_layers, pretrained.read_config(teacher.checkpoint).num_hidden_layers)
    text = load(task)
    if not task.labelled:
        text = replace(text, label_names=_classes_of(teacher, task))
    check_labels(teacher, text.label_names)
    if student is not None:
        check_student(student, teacher.checkpoint, text.label_names)
    tokenizer = pretrained.load_tokenizer(teacher.checkpoint)
    for checkpoint in checkpoints:
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
        beside={one.task.name: _read_beside(one, teacher, augmentation) for one in beside},
    )


def _read_beside(one: Beside, teacher: Teacher, augmentation: Augmentation | None) -> Inputs:
    """Another task. Raises UserError also where its teacher reads other tokens than the study's."""
    names = (one.teacher.checkpoint, teacher.checkpoint)
    sizes = [pretrained.read_config(name) for name in names]
    read = [(s.vocab_size, s.type_vocab_size, s.max_position_embeddings) for s in sizes]
    tokens = [pretrained.load_tokenizer(name).get_vocab() for name in names]
    if tokens[0] != tokens[1] or read[0] != read[1]:
        raise UserError(
            f"Study.beside: the teacher '{names[0]}' of task '{one.task.name}' does not read the "
            f"tokens of the study's '{names[1]}'; take teachers of one pretrained model"
        )
    return read_inputs(one.task, one.teacher, augmentation=augmentation)


def _classes_of(teacher: Teacher, task: Task) -> list[str]:
    """What the teacher calls the classes that a task without labels is about."""
    checkpoint = teacher.checkpoint
    names = pretrained.output_names(checkpoint) if pretrained.has_classifier(checkpoint) else []
    if len(names) < 2:
        kind = "gives a number" if names else "has no classifier yet"
        raise UserError(
            f"task '{task.name}': metric 'agreement' compares classes with the teacher's, but "
            f"'{checkpoint}' {kind}; use a fine-tuned classifier, or a metric with labels"
        )
    return names


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
            f"model '{checkpoint}': its type_vocab_size is {known}, but for pairs of texts the "
            f"tokenizer uses token type {max(types)}; use a model that reads pairs"
        )


def check_tokens(inputs: Inputs, splits: Iterable[Split]) -> None:
    """Tokens of the rows and of their padding: what else the tokenizer knows does not matter."""
    last = max(max(s.pad_token_id, *map(max, filter(None, s.input_ids))) for s in splits)
    for checkpoint in (inputs.teacher.checkpoint, inputs.student):
        if checkpoint is not None:
            pretrained.check_token(checkpoint, inputs.tokenizer, last)

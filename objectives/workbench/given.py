"""Answers that are there already, of an LLM behind an API, say: read and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor

from objectives.errors import SHOWN, UserError, a_few, did_you_mean
from objectives.problem import Words
from objectives.text.data import Split
from objectives.text.roles import number_of, read
from objectives.text.scanning import hashes_of, scan
from objectives.text.task import Examples, LabelledText, Task
from objectives.text.text_files import DELIMITERS, TextFile
from objectives.workbench.teacher import Teacher

_OFF = 0.02
"""How far the sum of probabilities may be from 1, as they are rounded; they are scaled to it."""
_LEAST = 1e-6
"""A probability of less counts as this."""


@dataclass(frozen=True, eq=False)
class GivenAnswers:
    """Answers by the texts that they are to."""

    texts: NDArray[np.uint64]
    """(texts,): a hash of each, ascending."""
    logits: Tensor
    """(texts, C)"""
    bert: None = None

    def said(self, split: Split, rows: Examples, role: str) -> Tensor:
        """See `Answering.said`."""
        del split, role
        return self.logits[np.searchsorted(self.texts, hashes_of(rows.texts))]

    def costs(self, seq_len: int) -> Mapping[str, float]:
        """None: nobody knows what was asked."""
        del seq_len
        return {}

    def words(self) -> Words:
        """There are none: `read_inputs` wants a BERT of the student's own."""
        raise AssertionError

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of texts and answers, hexadecimal, shortened to 16 digits."""
        both = self.texts.tobytes() + self.logits.numpy().tobytes()
        return hashlib.sha256(both).hexdigest()[:16]


def read_given(teacher: Teacher, task: Task, text: LabelledText) -> tuple[GivenAnswers, list[str]]:
    """The answers to all texts of a task, and the names of its labels, which are the answers' own
    where the task has none. Raises UserError for a text without an answer, and for what is none."""
    source = f"Teacher.answers '{teacher.answers}'"
    named = Path(str(teacher.answers))
    hard = teacher.answers_as == "labels"
    is_file = named.suffix.lower() in DELIMITERS
    roles = (*text.roles.values(), Examples(text.unlabelled, np.empty(0, np.int64)))
    wanted = np.unique(np.concatenate([hashes_of(own.texts) for own in roles if len(own.texts)]))
    known, values = np.empty(0, np.uint64), list[Any]()
    with TemporaryDirectory() as cache:
        if is_file:
            file = TextFile.named(named, None, "utf-8")
            data: Mapping[str, Dataset] = {"answers": file.read(task.columns, cache)}
        else:
            data = read(task, cache)
        for split in ["answers"] if is_file else _splits(task):
            rows = scan(task, data, split, labelled=False)
            texts, first = np.unique(rows.texts, return_index=True)
            new = np.isin(texts, wanted) & ~np.isin(texts, known)
            column = str(teacher.answers)
            if is_file:
                column = task.label_columns[0] if hard or task.regression else ""
            columns = [column] if column else list(text.label_names)
            if not columns:  # a task without labels: all that is no text
                columns = [c for c in data[split].column_names if c not in task.columns]
            there = data[split].column_names
            if missing := [name for name in columns if name not in there]:
                raise UserError(
                    f"{source}: no column {a_few(missing)}; there are {a_few(there)}"
                    f"{did_you_mean(missing[0], there)}"
                )
            chosen = data[split].select(rows.places[first[new]])
            known = np.concatenate([known, texts[new]])
            if column:
                values += list(chosen[column])
            else:
                each = zip(*(chosen[name] for name in columns), strict=True)
                values += [dict(zip(columns, row, strict=True)) for row in each]
    if len(known) < len(wanted):
        lost = wanted[~np.isin(wanted, known)]
        texts_of = (one for own in roles if len(own.texts) for one in own.texts)
        text_ = next(one for one in texts_of if np.isin(hashes_of([one]), lost).all())
        raise UserError(
            f"{source}: {len(lost):,} of {len(wanted):,} texts of the task have no answer, such as "
            f"'{text_[0][:SHOWN]}'; add them, or leave the texts out of the data"
        )
    order = np.argsort(known)
    names, logits = _logits(teacher, task, list(text.label_names), [values[n] for n in order])
    return GivenAnswers(known[order], torch.from_numpy(logits.astype(np.float32))), names


def _splits(task: Task) -> list[str]:
    named = (task.split, task.heldout_split, task.unlabelled_split)
    return list(dict.fromkeys(split for split in named if split is not None))


def _logits(
    teacher: Teacher, task: Task, names: list[str], values: Sequence[Any]
) -> tuple[list[str], NDArray[np.float64]]:
    """The names of the labels, and logits (rows, C) whose softmax are the probabilities."""
    source, hard = f"Teacher.answers '{teacher.answers}'", teacher.answers_as == "labels"
    if hard and task.multi_label:
        raise UserError(
            f"{source}: of texts with several labels, give probabilities or logits of each label"
        )
    if hard and not task.regression:
        labels = [_label(value) for value in values]
        names = names or sorted(set(labels))
        if unknown := sorted(set(labels) - set(names)):
            raise UserError(
                f"{source}: it has the label {a_few(unknown)}, which the task does not have; its "
                f"labels are {', '.join(names)}"
            )
        place = {name: number for number, name in enumerate(names)}
        shares = np.full((len(labels), len(names)), teacher.smoothing / len(names))
        shares[np.arange(len(labels)), [place[label] for label in labels]] += 1 - teacher.smoothing
        return names, np.log(shares.clip(_LEAST))
    names = names or _names(values[0])
    numbers = np.array(list(_numbers(source, names, values)))
    if not np.isfinite(numbers).all():
        raise UserError(f"{source}: it has nan or infinite numbers; mend them")
    if task.regression or teacher.answers_as == "logits":
        return names, numbers
    if task.multi_label and (numbers >= 0).all() and (numbers <= 1).all():
        return names, logit(numbers.clip(_LEAST, 1 - _LEAST))
    sums = numbers.sum(1)
    wrong = (numbers < 0).any(1) | (np.abs(sums - 1) > _OFF)
    if wrong.any():
        first = numbers[wrong][0]
        raise UserError(
            f"{source}: {wrong.sum():,} rows are no probabilities that sum to 1, such as "
            f"{', '.join(f'{number:g}' for number in first[:5])} (sum {first.sum():.3g}); mend "
            "them, or set answers_as='logits'"
        )
    return names, np.log((numbers / sums[:, None]).clip(_LEAST))


def _label(value: Any) -> str:
    number = number_of(value)
    return str(value if number is None else number)


def _names(value: Any) -> list[str]:
    """Those of the labels, as one answer tells them."""
    value = json.loads(value) if isinstance(value, str) else value
    return list(value) if isinstance(value, Mapping) else [str(n) for n in range(len(value))]


def _numbers(source: str, names: Sequence[str], values: Sequence[Any]) -> Iterator[list[float]]:
    """The numbers of each row, in the order of the labels."""
    for value in values:
        try:
            read = json.loads(value) if isinstance(value, str) else value
            if isinstance(read, Mapping):
                if lacking := [name for name in names if read.get(name) is None]:
                    raise UserError(
                        f"{source}: an answer is none to the label {a_few(lacking)}: "
                        f"{str(value)[:SHOWN]}; name the labels as the data does"
                    )
                read = [read[name] for name in names]
            row = [float(number) for number in (read if isinstance(read, list) else [read])]
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{source}: {str(value)[:SHOWN]!r} is no list of numbers and no mapping from "
                "labels to numbers; give either (in a CSV as JSON), or set answers_as='labels'"
            ) from error
        if len(row) != len(names):
            raise UserError(
                f"{source}: an answer has {len(row)} numbers, {str(value)[:SHOWN]}; the task has "
                f"{len(names)} labels: {', '.join(names)}"
            )
        yield row

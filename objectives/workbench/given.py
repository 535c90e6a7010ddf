"""Answers that are there already, of an LLM behind an API, say: read and checked."""

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
from datasets import ClassLabel, Dataset
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor

from objectives.errors import SHOWN, UserError, a_few, did_you_mean
from objectives.text.data import Split
from objectives.text.roles import number_of, read
from objectives.text.scanning import hashes_of, scan
from objectives.text.task import Examples, LabelledText, Task
from objectives.text.text_files import DELIMITERS, TextFile
from objectives.workbench.answering import Answering
from objectives.workbench.teacher import Teacher

_OFF = 0.02
"""How far the sum of probabilities may be from 1, as they are rounded; they are scaled to it."""
_LEAST = 1e-6
"""A probability of less counts as this."""


@dataclass(frozen=True, eq=False)
class GivenAnswers(Answering):
    """Answers by the texts that they are to."""

    texts: NDArray[np.uint64]
    """(texts,): a hash of each, ascending."""
    logits: Tensor
    """(texts, C)"""
    bert = None

    def answer(self, split: Split, rows: Examples) -> Tensor:
        return self.logits[np.searchsorted(self.texts, hashes_of(rows.texts))]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of texts and answers, hexadecimal, shortened to 16 digits."""
        both = self.texts.tobytes() + self.logits.numpy().tobytes()
        return hashlib.sha256(both).hexdigest()[:16]


def read_given(teacher: Teacher, task: Task, text: LabelledText) -> tuple[GivenAnswers, list[str]]:
    """The answers to all texts of a task, and the names of its labels, which are the answers' own
    where the task has none. Raises UserError for a text without an answer, and for what is none."""
    texts = [row for rows in text.roles.values() for row in rows.texts] + [*text.unlabelled]
    hashes, names = hashes_of(texts), list(text.label_names)
    answers = _found(teacher, task, names, hashes)
    # A nan, which equals nothing, is no answer.
    by_hash = {key: answer for key, answer in answers if answer is not None and answer == answer}
    lacking = [row for row, key in zip(texts, hashes.tolist(), strict=True) if key not in by_hash]
    if lacking:
        raise UserError(
            f"{_source(teacher)}: {len(lacking):,} of {len(texts):,} texts of the task have no "
            f"answer, such as {a_few(lacking[0])}; add them, or leave the texts out of the data"
        )
    unique = np.unique(hashes)
    names, logits = _logits(teacher, task, names, [by_hash[key] for key in unique.tolist()])
    return GivenAnswers(unique, torch.from_numpy(logits.astype(np.float32))), names


def _source(teacher: Teacher) -> str:
    return f"Teacher.answers '{teacher.answers}'"


def _found(
    teacher: Teacher, task: Task, names: Sequence[str], wanted: NDArray[np.uint64]
) -> Iterator[tuple[int, Any]]:
    """The hashes of texts that are wanted, each with what is answered; of equal texts the first is
    last, and so counts in a dict."""
    column, splits = str(teacher.answers), (task.split, task.heldout_split, task.unlabelled_split)
    with TemporaryDirectory() as cache:
        if Path(column).suffix.lower() in DELIMITERS:
            file = TextFile.named(column, None, "utf-8")
            data: Mapping[str, Dataset] = {"answers": file.read(task.columns, cache)}
            splits = ("answers", None, None)
            single = teacher.answers_as == "labels" or task.regression
            columns = [task.label_columns[0]] if single else names
        else:
            data, columns, single = read(task, cache), [column], True
        for split in dict.fromkeys(filter(None, splits[::-1])):
            present = data[split].column_names
            # Of a task without labels each column that is no text is a label's.
            columns = columns or [name for name in present if name not in task.columns]
            if missing := [name for name in columns if name not in present]:
                raise UserError(
                    f"{_source(teacher)}: no column {a_few(missing)}; there are {a_few(present)}"
                    f"{did_you_mean(missing[0], present)}"
                )
            rows = scan(task, data, split, labelled=False)
            texts, first = np.unique(rows.texts, return_index=True)
            some = np.isin(texts, wanted)
            chosen = data[split].select(rows.places[first[some]]).select_columns(columns)
            answers = [row[columns[0]] if single else row for row in chosen]
            if single and isinstance(kind := chosen.features[columns[0]], ClassLabel):
                answers = [answer if answer is None else kind.int2str(answer) for answer in answers]
            yield from zip(texts[some].tolist(), answers, strict=True)


def _logits(
    teacher: Teacher, task: Task, names: list[str], values: Sequence[Any]
) -> tuple[list[str], NDArray[np.float64]]:
    """The names of the labels, and logits (rows, C), of which the probabilities are the softmax, or
    of several labels the sigmoid."""
    source, hard = _source(teacher), teacher.answers_as == "labels"
    if hard and task.multi_label:
        raise UserError(
            f"{source}: of texts with several labels, give probabilities or logits of each label"
        )
    if hard and not task.regression:
        stripped = [value.strip() if isinstance(value, str) else value for value in values]
        numbered = zip(stripped, map(number_of, stripped), strict=True)
        labels = [str(value if number is None else number) for value, number in numbered]
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
    if not names:
        first = json.loads(values[0]) if isinstance(values[0], str) else values[0]
        names = list(first) if isinstance(first, Mapping) else list(map(str, range(len(first))))
    numbers = np.array(list(_numbers(source, names, values)))
    if not np.isfinite(numbers).all():
        raise UserError(f"{source}: it has nan or infinite numbers; mend them")
    if task.regression or teacher.answers_as == "logits":
        return names, numbers
    sums, several = numbers.sum(1), task.multi_label
    off = (numbers > 1).any(1) if several else np.abs(sums - 1) > _OFF
    if (wrong := (numbers < 0).any(1) | off).any():
        row = numbers[wrong][0]
        raise UserError(
            f"{source}: {wrong.sum():,} rows are no probabilities{' that sum to 1' * (not several)}"
            f", such as {', '.join(f'{number:g}' for number in row[:5])} (sum {row.sum():.3g});"
            " mend them, or set answers_as='logits'"
        )
    if several:
        return names, logit(numbers.clip(_LEAST, 1 - _LEAST))
    return names, np.log((numbers / sums[:, None]).clip(_LEAST))


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

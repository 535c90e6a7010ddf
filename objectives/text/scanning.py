"""The rows of a split: index, hash of the text and label of each, read once."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
import pyarrow
from datasets import Dataset
from numpy.typing import NDArray
from pyarrow import compute

from objectives.errors import SHOWN, did_you_mean
from objectives.metric import Labels
from objectives.text.task import Task

_READ_TOGETHER = 10_000
"""Number of rows whose text is in memory at a time."""
_WHITE = (  # what str.isspace() takes for white, but for the blank
    r"\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
_NOT_ONE_BLANK = rf"[ {_WHITE}]{{2,}}|[{_WHITE}]"
_QUOTED = r".*[\[{]['\"].*"
_LIST = re.compile(rf"[\[{{].*[\]}}]|\(.*,.*\)|(?:set)?\(\)|{_QUOTED}", re.DOTALL)
_TORN = re.compile(rf"[\[{{][^\[\]{{}}]*[\]}}]|{_QUOTED}", re.DOTALL)
_BETWEEN = re.compile(r"(?<=['\"])\s+(?=['\"])")
"""Pattern between two strings of an array as numpy prints it, which Python would join."""
_ONE_LABEL = "a row must have one label; for several set multi_label"
_REMEDIES: dict[type, tuple[str, str]] = {
    list: ("a list", "join its tokens into one text"),
    dict: ("a mapping", "make a column of the text in it"),
    bytes: ("bytes", "decode them"),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one split of the data, or some of them."""

    data: Dataset
    indices: NDArray[np.int64]
    """Indices of the rows in the data, ascending."""
    texts: NDArray[np.uint64]
    """Hash of each text with single blanks between words. Of 10 million texts, two differ with
    equal hashes once in 400,000 times."""
    labels: Labels
    """Numbers (regression), or indices in `values`."""
    values: Sequence[Any]
    """Labels that occur, as the data spells them; empty for regression."""

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> "Rows":
        return replace(
            self, indices=self.indices[which], texts=self.texts[which], labels=self.labels[which]
        )


def _split(task: Task, data: Mapping[str, Dataset], split: str, columns: Sequence[str]) -> Dataset:
    if split not in data:
        raise task.refusal(f"no split '{split}'; there are {', '.join(data)}")
    names = data[split].column_names
    for column in columns:
        if column not in names:
            raise task.refusal(
                f"no column '{column}'; there are {', '.join(map(repr, names))}"
                f"{did_you_mean(column, names)}"
            )
    return data[split]


def scan(task: Task, data: Mapping[str, Dataset], split: str, *, labelled: bool = True) -> Rows:
    """Read the rows of a split with text and label; if not `labelled`, with text, labelled -1."""
    columns = list(dict.fromkeys((*task.columns, *task.label_columns * labelled)))
    rows = _split(task, data, split, columns)
    missing: dict[str, list[int]] = {column: [] for column in columns}
    parts: list[tuple[NDArray[np.int64], NDArray[np.uint64], Labels]] = []
    codes: dict[Any, int] = {}
    tables = rows.select_columns(columns).with_format("arrow").iter(_READ_TOGETHER)
    for number, table in enumerate(tables):
        start = number * _READ_TOGETHER
        read = {name: _one_value_a_row(task, split, name, table[name], start) for name in columns}
        words = {column: _collapsed(read[column]) for column in columns}
        complete = np.ones(len(table), dtype=np.bool_)
        for column in columns:
            lost = np.flatnonzero(_lacking(task, column, words[column]))
            missing[column] += (lost + start).tolist()
            complete[lost] = False
        hashes = _hashes([words[column].filter(complete).to_pylist() for column in task.columns])
        labels: Labels = np.full(complete.sum(), -1)
        if labelled:
            values = [
                [value.strip() if isinstance(value, str) else value for value in column.to_pylist()]
                for column in (read[name].filter(complete) for name in task.label_columns)
            ]
            if task.multi_label:
                values = [[_labels_of(task, row) for row in zip(*values, strict=True)]]
            if task.regression:
                labels = _numbers(task, values[0])
            else:
                numbers = [codes.setdefault(value, len(codes)) for value in values[0]]
                labels = np.array(numbers, dtype=np.int64)
        parts.append((np.flatnonzero(complete) + start, hashes, labels))
    if labelled and not task.drop_missing:
        _check_missing(task, split, missing)
    if not any(len(indices) for indices, _, _ in parts):
        whole_ones = f" with a text{' and a label' * labelled}" if parts else ""
        raise task.refusal(f"split '{split}' has no rows{whole_ones}")
    indices, texts, all_labels = map(np.concatenate, zip(*parts, strict=True))
    return Rows(rows, indices, texts, all_labels, list(codes))


def _check_missing(task: Task, split: str, missing: Mapping[str, Sequence[int]]) -> None:
    for column, rows in missing.items():
        if rows:
            what = "label" if column in task.label_columns else "text"
            lack = "1 row lacks" if len(rows) == 1 else f"{len(rows):,} rows lack"
            raise task.refusal(
                f"{lack} a {what} in column '{column}' of split '{split}', the first is row "
                f"{rows[0] + 1:,}; fill them in, or set drop_missing=True to leave them out"
            )


def _lacking(
    task: Task, name: str, column: pyarrow.ChunkedArray
) -> pyarrow.ChunkedArray | NDArray[np.bool_]:
    """Mask of the rows that lack a value; a row of several labels may have none."""
    if not (task.multi_label and name == task.label):
        return _missing(column)
    if task.drop_missing and not _is_text(column):  # a CSV has no other sign for "no label"
        return column.is_null()
    return np.zeros(len(column), dtype=np.bool_)


def _one_value_a_row(
    task: Task, split: str, name: str, column: pyarrow.ChunkedArray, first: int
) -> pyarrow.ChunkedArray:
    """Column of the data, JSON as text. Raises UserError for a list, a mapping, or bytes."""
    kind, is_text = column.type, name in task.columns
    in_json = isinstance(kind, pyarrow.JsonType)
    nested = pyarrow.types.is_nested(kind) or isinstance(kind, pyarrow.BaseExtensionType)
    if not (nested or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)):
        return column
    several = task.multi_label and not is_text
    if several and (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)):
        return column
    values = [value and json.loads(value) if in_json else value for value in column.to_pylist()]
    if several:
        values = [
            json.dumps(value, default=str) if isinstance(value, list) else value for value in values
        ]
    for row, value in enumerate(values):
        what, remedy = _REMEDIES.get(type(value), ("", ""))
        if what:
            raise task.refusal(
                f"row {first + row + 1:,} of split '{split}' has {what} in "
                f"column '{name}', {str(value)[:SHOWN]}; "
                + (remedy if is_text or isinstance(value, bytes) else _ONE_LABEL)
            )
    texts = [None if value is None else str(value) for value in values]
    return pyarrow.chunked_array([pyarrow.array(texts, pyarrow.string())])


def _collapsed(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Normalise blanks as a tokenizer does: one between words, none around; numbers stay."""
    if not _is_text(column):
        return column
    one_blank = compute.replace_substring_regex(column, _NOT_ONE_BLANK, " ")
    return compute.utf8_trim(one_blank, characters=" ")


def _missing(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Mask of entries that are missing, NaN, or blank."""
    if _is_text(column):
        return compute.fill_null(compute.equal(column, ""), True)
    return column.is_null(nan_is_null=True)


def _is_text(column: pyarrow.ChunkedArray) -> bool:
    types = pyarrow.types
    return bool(types.is_string(column.type) or types.is_large_string(column.type))


def hashes_of(texts: Sequence[tuple[str, ...]]) -> NDArray[np.uint64]:
    """Hash texts in memory like `Rows.texts`, (rows,)."""
    columns = (
        pyarrow.chunked_array([pyarrow.array(column)]) for column in zip(*texts, strict=True)
    )
    return _hashes([_collapsed(column).to_pylist() for column in columns])


def _hashes(columns: Sequence[Sequence[Any]]) -> NDArray[np.uint64]:
    """Hash the text of each row, equally in every process."""
    texts = {number: list(map(str, column)) for number, column in enumerate(columns)}
    frame = pandas.DataFrame(texts, dtype=object)
    return pandas.util.hash_pandas_object(frame, index=False).to_numpy().astype(np.uint64)


def _numbers(task: Task, values: Sequence[Any]) -> Labels:
    try:
        numbers = np.array(values, dtype=np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("nan or infinite")
    except (TypeError, ValueError) as error:
        raise task.refusal(
            f"metric '{task.metric}' needs numbers in column '{task.label}' ({error})"
        ) from error
    return numbers


def _labels_of(task: Task, row: Sequence[Any]) -> tuple[str, ...]:
    """Labels of a row, sorted: those of its list or text, or those whose column is 1."""
    if isinstance(task.label, str):
        (value,) = row
        listed = _listed(task, value) if isinstance(value, str) else value
        given = listed if isinstance(listed, list) else [value]
        names = {str(label).strip() for label in given if label is not None}
        return tuple(sorted(names - {""}))
    flags = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}
    present = [flags.get(str(value).strip()) for value in row]
    if None in present:
        raise task.refusal(
            f"column '{task.label[present.index(None)]}' has "
            f"{str(row[present.index(None)])[:SHOWN]!r}; the column of a label has 1 and 0 alone"
        )
    return tuple(sorted(name for name, is_1 in zip(task.label, present, strict=True) if is_1))


def _listed(task: Task, text: str) -> list[Any]:
    """Parse the labels in a text: a list as JSON, Python or numpy write it, or separated names."""
    if not _LIST.fullmatch(text):
        return text.split(task.separator)
    for parse, source in ((json.loads, text), (ast.literal_eval, _BETWEEN.sub(", ", text))):
        with suppress(ValueError, SyntaxError, RecursionError):
            labels = parse(source)
            if not isinstance(labels, list | tuple | set) or any(
                isinstance(label, list | tuple | set | dict) for label in labels
            ):
                break
            return [*labels]
    else:
        if not _TORN.fullmatch(text):
            return text.split(task.separator)
    raise task.refusal(
        f"column '{task.label}' has {text[:SHOWN]!r}, which is no list of labels as JSON or Python "
        f"write it; write it so, or labels with {task.separator!r} between"
    )

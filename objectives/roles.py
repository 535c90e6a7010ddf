"""A task's rows in four disjoint roles.

Of a row that has no role yet its place, a hash of its text and its label are kept, 24 bytes; its
text is read once it has one. Drawing the roles takes some 150 bytes a row at its peak; beyond that
memory follows what the roles hold, not how large the data is (`benchmarks.many_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
from datasets import ClassLabel, Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from objectives.data import Labels
from objectives.errors import UserError, a_few, did_you_mean, first_line
from objectives.task import Examples, LabelledText, Task

_READ_TOGETHER = 10_000
"""Rows whose text is in memory at a time."""
_WHOLE = re.compile(r"([+-]?(?:0|[1-9]\d*))(?:\.0*)?")
_REAL = re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one split of the data: all of them, or those that are left."""

    data: Dataset
    places: NDArray[np.int64]
    """Where they stand in the data, ascending."""
    texts: NDArray[np.uint64]
    """A hash of each text. Of 10 million, two differ with equal hashes once in 400,000 times."""
    labels: Labels
    """A number (regression), or a place in `values`."""
    values: Sequence[Any]
    """The labels that occur, as the data has them; none where they are numbers."""

    def __len__(self) -> int:
        return len(self.places)

    def at(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> _Rows:
        return replace(
            self,
            places=self.places[which],
            texts=self.texts[which],
            labels=self.labels[which],
        )


def load(task: Task) -> LabelledText:
    """Read the data and split it; the text of the roles is in memory afterwards.

    Raises UserError for a data set, a column or a label that is not there, for an empty split, for
    labels that are all equal, and for too few rows.
    """
    with TemporaryDirectory() as cache:  # for what `datasets` makes of local files
        return _in_roles(task, _read(task, cache))


def _in_roles(task: Task, data: Mapping[str, Dataset]) -> LabelledText:
    drawn = _scanned(task, data, task.split)
    drawn = drawn.at(np.sort(np.unique(drawn.texts, return_index=True)[1]))
    roles: dict[str, _Rows] = {}
    wanted = {"heldout": task.heldout, "select": task.select, "alpha": task.alpha}
    if task.heldout_split is not None:
        roles["heldout"] = _scanned(task, data, task.heldout_split)
        drawn = drawn.at(~np.isin(drawn.texts, roles["heldout"].texts))
        del wanted["heldout"]
        if not len(drawn):
            raise UserError(
                f"task '{task.name}': every text of split '{task.split}' stands in the held-out "
                f"split '{task.heldout_split}' too; nothing is left to train on"
            )
    names = [task.label]
    if not task.regression:
        names, (drawn, *heldout) = _classed(task, [drawn, *roles.values()])
        roles = dict(zip(roles, heldout, strict=True))
    if len(np.unique(drawn.labels)) < 2:
        only = drawn.labels[0] if task.regression else names[drawn.labels[0]]
        raise UserError(f"task '{task.name}': column '{task.label}' has one label only: {only}")
    rest = drawn
    for role, rows in wanted.items():
        rest, roles[role] = _take(task, role, rows, rest, names)
    if task.train is not None and task.train < len(rest):
        rest = _take(task, "train", task.train, rest, names)[1]
    elif task.train is not None and task.train > len(rest):
        raise UserError(
            f"task '{task.name}': train={task.train}, but only {len(rest)} rows are left "
            f"after the other roles"
        )
    roles["train"] = rest
    return LabelledText({role: _examples(task, rows) for role, rows in roles.items()}, names)


def _read(task: Task, cache: str) -> Mapping[str, Dataset]:
    if callable(task.data):
        try:
            data = task.data()
        except Exception as error:
            raise UserError(
                f"task '{task.name}': data() raises {type(error).__name__}: {error}"
            ) from error
        if not isinstance(data, Dataset | DatasetDict):
            raise UserError(
                f"task '{task.name}': data() returned {type(data).__name__}, "
                "not datasets.Dataset or DatasetDict"
            )
        return _by_split(task, data)
    if isinstance(task.data, Mapping):
        columns = [*task.columns, task.label]
        return {split: file.read(columns, cache) for split, file in task.data.items()}
    folder = Path(task.data)
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    try:
        if saved:  # by save_to_disk
            return _by_split(task, load_from_disk(task.data))
        local = folder.exists()
        loaded = load_dataset(task.data, task.subset, cache_dir=cache if local else None)
    except (DatasetsError, OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(
            f"task '{task.name}': data set '{task.data}' could not be loaded ({reason})"
        ) from error
    splits: Mapping[str, Dataset] = loaded
    return splits


def _by_split(task: Task, data: Dataset | DatasetDict) -> Mapping[str, Dataset]:
    """A single data set is the split to draw from."""
    splits: Mapping[str, Dataset] = data if isinstance(data, DatasetDict) else {task.split: data}
    return splits


def _split(task: Task, data: Mapping[str, Dataset], split: str) -> Dataset:
    if split not in data:
        raise UserError(f"task '{task.name}': no split '{split}'; there are {', '.join(data)}")
    rows = data[split]
    for column in (*task.columns, task.label):
        if column not in rows.column_names:
            raise UserError(
                f"task '{task.name}': no column '{column}'; there are "
                f"{', '.join(map(repr, rows.column_names))}"
                f"{did_you_mean(column, rows.column_names)}"
            )
    return rows


def _scanned(task: Task, data: Mapping[str, Dataset], split: str) -> _Rows:
    """The rows of a split that have a text and a label, read once, some at a time."""
    rows = _split(task, data, split)
    columns = list(dict.fromkeys((*task.columns, task.label)))
    missing: dict[str, list[int]] = {column: [] for column in columns}
    places: list[NDArray[np.int64]] = []
    texts: list[NDArray[np.uint64]] = []
    labels: list[Labels] = []
    codes: dict[Any, int] = {}
    tables = rows.select_columns(columns).with_format("arrow").iter(_READ_TOGETHER)
    for number, table in enumerate(tables):
        whole = np.ones(len(table), dtype=np.bool_)
        for column in columns:
            lost = np.flatnonzero(table[column].is_null())
            missing[column] += (lost + number * _READ_TOGETHER).tolist()
            whole[lost] = False
        values = {column: table[column].filter(whole).to_pylist() for column in columns}
        places.append(np.flatnonzero(whole) + number * _READ_TOGETHER)
        texts.append(_hashes([values[column] for column in task.columns]))
        labels.append(
            _numbers(task, values[task.label])
            if task.regression
            else _codes(task, values[task.label], codes)
        )
    if not task.drop_missing:
        _check_missing(task, split, missing)
    if not places or not sum(map(len, places)):
        raise UserError(f"task '{task.name}': split '{split}' has no rows")
    return _Rows(
        rows, np.concatenate(places), np.concatenate(texts), np.concatenate(labels), list(codes)
    )


def _check_missing(task: Task, split: str, missing: Mapping[str, Sequence[int]]) -> None:
    for column, rows in missing.items():
        if rows:
            what = "label" if column == task.label else "text"
            lack = "1 row lacks" if len(rows) == 1 else f"{len(rows):,} rows lack"
            raise UserError(
                f"task '{task.name}': {lack} a {what} in column '{column}' of split '{split}', "
                f"the first is row {rows[0] + 1:,}; fill them in, or set drop_missing=True to "
                "leave them out"
            )


def _hashes(columns: Sequence[Sequence[Any]]) -> NDArray[np.uint64]:
    """Of the text of each row, the same in every process."""
    frame = pandas.DataFrame(
        {number: [str(value) for value in column] for number, column in enumerate(columns)},
        dtype=object,
    )
    return pandas.util.hash_pandas_object(frame, index=False).to_numpy().astype(np.uint64)


def _numbers(task: Task, values: Sequence[Any]) -> Labels:
    try:
        numbers = np.array(values, dtype=np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("nan or infinite")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"task '{task.name}': metric '{task.metric}' needs numbers in column '{task.label}' "
            f"({error})"
        ) from error
    return numbers


def _codes(task: Task, values: Sequence[Any], codes: dict[Any, int]) -> Labels:
    """A number for each label, those that are new added to `codes`."""
    try:
        numbers = [codes.setdefault(value, len(codes)) for value in values]
    except TypeError as error:
        raise UserError(
            f"task '{task.name}': column '{task.label}' has {type(values[0]).__name__}s; "
            "a row must have one label"
        ) from error
    return np.array(numbers, dtype=np.int64)


def _classed(task: Task, parts: Sequence[_Rows]) -> tuple[list[str], list[_Rows]]:
    """The names of the classes, and the parts with a class for each label."""
    present = {part.values[code] for part in parts for code in np.unique(part.labels)}
    feature = parts[0].data.features[task.label]
    if isinstance(feature, ClassLabel):
        classes = {number: number for number in range(feature.num_classes)}
        names = list(feature.names)
    else:
        meant = _meant(task, present)
        try:
            ordered = sorted(set(meant.values()))
        except TypeError as error:
            splits = zip((task.split, task.heldout_split), parts, strict=False)
            kinds = (f"{type(part.values[0]).__name__}s in '{split}'" for split, part in splits)
            raise UserError(
                f"task '{task.name}': the labels in column '{task.label}' are of other kinds from "
                f"split to split ({', '.join(kinds)}); write them alike in both"
            ) from error
        names = [str(value) for value in ordered]
        place = {value: number for number, value in enumerate(ordered)}
        classes = {value: place[meant[value]] for value in present}
    unknown = present - set(classes)
    if unknown:
        raise UserError(
            f"task '{task.name}': column '{task.label}' has {min(unknown, key=str)!r}, which is "
            f"none of its labels ({', '.join(names)}); an unlabelled split cannot be used"
        )
    return names, [
        replace(part, labels=np.array([classes.get(v, -1) for v in part.values])[part.labels])
        for part in parts
    ]


def _meant(task: Task, labels: set[Any]) -> dict[Any, Any]:
    """What each label stands for: a whole number where all are that, as 2, 2.0, "2" or "2.0"."""
    numbers = {label: _number(label) for label in labels}
    if any(number is None for number in numbers.values()):
        return {label: label for label in labels}
    real = [number for number in numbers.values() if isinstance(number, float)]
    if real:
        raise UserError(
            f"task '{task.name}': column '{task.label}' has numbers such as {min(real)}, which "
            "name no class; set metric='pearson_spearman' to learn numbers, or write words for "
            "classes"
        )
    return numbers


def _number(label: Any) -> int | float | None:
    """A label as a number, an int if it is whole; None if it is something else."""
    if isinstance(label, str):
        whole = _WHOLE.fullmatch(label)
        if whole:
            return int(whole[1])
        return float(label) if _REAL.fullmatch(label) else None
    if isinstance(label, float):
        return int(label) if label.is_integer() else label
    return label if isinstance(label, int) and not isinstance(label, bool) else None


def _take(
    task: Task, role: str, wanted: int, rows: _Rows, names: Sequence[str]
) -> tuple[_Rows, _Rows]:
    """Split off as many rows, stratified by class; returns what is left and what was taken."""
    reason = _too_few(task, wanted, rows, names)
    if reason:
        kind = "" if task.regression else "stratified "
        raise UserError(
            f"task '{task.name}': cannot take {wanted} {kind}rows for '{role}' out of "
            f"{len(rows)}: {reason}"
        )
    rest, taken = train_test_split(
        np.arange(len(rows)),
        test_size=wanted,
        random_state=task.seed,
        stratify=None if task.regression else rows.labels,
    )
    return rows.at(np.sort(rest)), rows.at(np.sort(taken))


def _too_few(task: Task, wanted: int, rows: _Rows, names: Sequence[str]) -> str:
    """Why so many rows cannot be taken, and what to do; nothing if they can."""
    if wanted >= len(rows):
        return "heldout, select and alpha are taken first; set them to fewer rows"
    if task.regression:
        return ""
    counts = np.bincount(rows.labels)
    classes, single = np.count_nonzero(counts), np.flatnonzero(counts == 1)
    if len(single):
        have = "has" if len(single) == 1 else "have"
        reason = (
            f"{len(single):,} of the {classes:,} labels {have} only one row left "
            f"({a_few([names[int(label)] for label in single])}), too few to be in both parts; "
            "leave these rows out, or correct their labels"
        )
    elif min(wanted, len(rows) - wanted) < classes:
        reason = (
            "what is taken and what is left need a row of each label; take "
            f"{classes:,} to {len(rows) - classes:,}"
        )
    else:
        return ""
    many = classes > len(rows) // 4
    return reason + (f"; is '{task.label}' a column of labels, or of ids?" if many else "")


def _examples(task: Task, rows: _Rows) -> Examples:
    chosen = rows.data.select(rows.places)
    columns = [list(chosen[column]) for column in task.columns]
    return Examples([tuple(map(str, texts)) for texts in zip(*columns, strict=True)], rows.labels)

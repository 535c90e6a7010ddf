"""A task: labelled text, its metric, and the four splits that a study needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, load_dataset
from datasets.exceptions import DatasetsError
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.model_selection import train_test_split
from transformers import PreTrainedTokenizerBase

from objectives.data import Split
from objectives.errors import UserError

Metric = Literal["accuracy", "mcc", "f1"]
Labels = np.ndarray[tuple[int], np.dtype[np.int64]]

ROLES = ("train", "alpha", "select", "heldout")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Where the text is, which columns count, and how many rows each role gets.

    The roles are disjoint and stratified by label: `train` trains weights, `alpha` the architecture
    variables, `select` is what the study sees, `heldout` is reported and never seen by a search.
    Rows of equal text are one row: the first is kept, so that no text stands in two roles.
    """

    name: str
    data: str | Callable[[], Dataset]
    """A data set on the hub, a local folder that `datasets.load_dataset` reads, or a function."""
    subset: str | None = None
    """Configuration of the data set, such as "cola" of GLUE."""
    text: str | tuple[str, str] = "text"
    """The column of the text, or the two columns of a pair of sentences."""
    label: str = "label"
    metric: Metric = "accuracy"
    """accuracy, mcc (Matthews correlation), or f1 (of class 1 of two; macro for more classes)."""
    max_length: int = 128
    """Longest input in tokens; longer text is cut off."""
    split: str = "train"
    """The split of the data set that the rows are drawn from."""
    heldout_split: str | None = None
    """A split of the data set that is the held-out one, whole; None draws `heldout` rows."""
    train: int | None = None
    """Rows of each role. None for train: all that is left."""
    alpha: int = 500
    select: int = 1000
    heldout: int = 1000
    seed: int = 0
    """Decides which row gets which role."""

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            raise UserError(
                f"task '{self.name}': no metric '{self.metric}'; "
                f"there are {', '.join(get_args(Metric))}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns."""
        return (self.text,) if isinstance(self.text, str) else self.text


@dataclass(frozen=True)
class Examples:
    """The rows of one role, as text."""

    texts: Sequence[tuple[str, ...]]
    labels: Labels


@dataclass(frozen=True)
class LabelledText:
    """What a task's data is, in four roles."""

    roles: Mapping[str, Examples]
    label_names: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of every text and label in its role, shortened to 16 digits."""
        digest = hashlib.sha256(repr(list(self.label_names)).encode())
        for role in ROLES:
            examples = self.roles[role]
            digest.update(repr((role, list(examples.texts), examples.labels.tolist())).encode())
        return digest.hexdigest()[:16]


def load(task: Task) -> LabelledText:
    """Read the data and split it; all of it is in memory afterwards.

    Raises UserError for a data set, a column or a label that is not there, and for too few rows.
    """
    with TemporaryDirectory() as cache:  # for what `datasets` makes of local files
        return _in_roles(task, _read(task, cache))


def _in_roles(task: Task, data: DatasetDict) -> LabelledText:
    drawn = _first_of_each_text(task, _split(task, data, task.split))
    if task.heldout_split is None:
        names, examples = _label_names(task, [drawn])
        roles: dict[str, Examples] = {}
        wanted = {"heldout": task.heldout, "select": task.select, "alpha": task.alpha}
    else:
        heldout = _first_of_each_text(task, _split(task, data, task.heldout_split))
        seen = set(_texts(task, heldout))
        drawn = drawn.select([i for i, text in enumerate(_texts(task, drawn)) if text not in seen])
        names, examples = _label_names(task, [drawn, heldout])
        roles = {"heldout": examples[1]}
        wanted = {"select": task.select, "alpha": task.alpha}
    rest = examples[0]
    for role, rows in wanted.items():
        rest, roles[role] = _take(task, role, rows, rest)
    if task.train is not None and task.train < len(rest.texts):
        rest = _take(task, "train", task.train, rest)[1]
    elif task.train is not None and task.train > len(rest.texts):
        raise UserError(
            f"task '{task.name}': train={task.train}, but only {len(rest.texts)} rows are left "
            f"after the other roles"
        )
    return LabelledText({**roles, "train": rest}, names)


def tokenise(
    examples: Examples,
    role: str,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    label_order: Sequence[int],
) -> Split:
    """One role as token ids. `label_order` maps the task's labels to those of the teacher."""
    columns = [list(column) for column in zip(*examples.texts, strict=True)]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    return Split(
        role=role,
        input_ids=encoded["input_ids"],
        token_type_ids=encoded["token_type_ids"],
        labels=np.asarray(label_order, dtype=np.int64)[examples.labels],
        pad_token_id=tokenizer.pad_token_id,
        max_length=max_length,
    )


def metric_value(metric: Metric, labels: Labels, predictions: Labels) -> float:
    """The metric of predicted labels; higher is better."""
    if metric == "accuracy":
        return float(accuracy_score(labels, predictions))
    if metric == "mcc":
        return float(matthews_corrcoef(labels, predictions))
    average = "binary" if labels.max() <= 1 else "macro"
    return float(f1_score(labels, predictions, average=average, zero_division=0.0))


def _read(task: Task, cache: str) -> DatasetDict:
    if callable(task.data):
        try:
            data = task.data()
        except Exception as error:
            raise UserError(
                f"task '{task.name}': data() raises {type(error).__name__}: {error}"
            ) from error
        if not isinstance(data, Dataset):
            raise UserError(
                f"task '{task.name}': data() returned {type(data).__name__}, not datasets.Dataset"
            )
        return DatasetDict({task.split: data})
    local = Path(task.data).exists()
    try:
        loaded = load_dataset(task.data, task.subset, cache_dir=cache if local else None)
    except (DatasetsError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"task '{task.name}': data set '{task.data}' could not be loaded ({reason})"
        ) from error
    assert isinstance(loaded, DatasetDict)
    return loaded


def _split(task: Task, data: DatasetDict, split: str) -> Dataset:
    if split not in data:
        raise UserError(f"task '{task.name}': no split '{split}'; there are {', '.join(data)}")
    rows = data[split]
    for column in (*task.columns, task.label):
        if column not in rows.column_names:
            raise UserError(
                f"task '{task.name}': no column '{column}'; "
                f"there are {', '.join(rows.column_names)}"
            )
    return rows


def _texts(task: Task, rows: Dataset) -> list[tuple[str, ...]]:
    columns = [list(rows[column]) for column in task.columns]
    for name, column in zip(task.columns, columns, strict=True):
        if None in column:
            raise UserError(f"task '{task.name}': column '{name}' has rows without a text")
    return [tuple(map(str, texts)) for texts in zip(*columns, strict=True)]


def _first_of_each_text(task: Task, rows: Dataset) -> Dataset:
    first: dict[tuple[str, ...], int] = {}
    for place, text in enumerate(_texts(task, rows)):
        first.setdefault(text, place)
    return rows.select(list(first.values()))


def _label_names(task: Task, parts: Sequence[Dataset]) -> tuple[list[str], list[Examples]]:
    columns: list[list[Any]] = [list(part[task.label]) for part in parts]
    feature = parts[0].features[task.label]
    if isinstance(feature, ClassLabel):
        values: list[Any] = list(range(feature.num_classes))
        names = list(feature.names)
    else:
        present = {value for column in columns for value in column}
        if None in present:
            raise UserError(f"task '{task.name}': column '{task.label}' has rows without a label")
        values = sorted(present)
        names = [str(value) for value in values]
    index = {value: number for number, value in enumerate(values)}
    unknown = {value for column in columns for value in column} - set(index)
    if unknown:
        raise UserError(
            f"task '{task.name}': column '{task.label}' has {min(unknown, key=str)!r}, which is "
            f"none of its labels ({', '.join(names)}); an unlabelled split cannot be used"
        )
    if len(names) < 2:
        raise UserError(f"task '{task.name}': column '{task.label}' has one label only: {names}")
    labels = [np.array([index[value] for value in column], dtype=np.int64) for column in columns]
    examples = [
        Examples(_texts(task, part), label) for part, label in zip(parts, labels, strict=True)
    ]
    return names, examples


def _take(task: Task, role: str, rows: int, examples: Examples) -> tuple[Examples, Examples]:
    """Split off `rows` stratified rows; returns what is left and what was taken."""
    try:
        rest, taken = train_test_split(
            np.arange(len(examples.texts)),
            test_size=rows,
            random_state=task.seed,
            stratify=examples.labels,
        )
    except ValueError as error:
        raise UserError(
            f"task '{task.name}': cannot take {rows} stratified rows for '{role}' out of "
            f"{len(examples.texts)} ({error})"
        ) from error

    def part(places: Labels) -> Examples:
        ordered = np.sort(places)
        return Examples([examples.texts[i] for i in ordered], examples.labels[ordered])

    return part(rest), part(taken)

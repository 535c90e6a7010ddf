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
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.model_selection import train_test_split
from transformers import PreTrainedTokenizerBase

from objectives.data import Labels, Split
from objectives.errors import UserError

Metric = Literal["accuracy", "mcc", "f1", "pearson_spearman"]

ROLES = ("train", "alpha", "select", "heldout")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Where the text is, which columns count, and how many rows each role gets.

    The roles are disjoint and stratified by class: `train` trains weights, `alpha` the architecture
    variables, `select` is what the study sees, `heldout` is reported and never seen by a search.
    Rows of equal text are one row: the first is kept, so that no text stands in two roles.

    The metric says what the labels are: numbers for pearson_spearman (regression: one output,
    squared error), classes for all others.
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
    """accuracy, mcc (Matthews correlation), f1 (of class 1 of two; macro for more classes), or
    pearson_spearman (mean of both correlations, of labels that are numbers)."""
    max_length: int = 128
    """Longest input in tokens; longer text is cut off."""
    split: str = "train"
    """The split of the data set that the rows are drawn from."""
    heldout_split: str | None = None
    """A split of the data set that is the held-out one, whole, equal texts and all, so that its
    metric is the published one; None draws `heldout` rows."""
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

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers, not classes."""
        return self.metric == "pearson_spearman"


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
    """What the outputs of a classifier stand for; of a regression, the label's column alone."""

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

    Raises UserError for a data set, a column or a label that is not there, for an empty split, for
    labels that are all equal, and for too few rows.
    """
    with TemporaryDirectory() as cache:  # for what `datasets` makes of local files
        return _in_roles(task, _read(task, cache))


def _in_roles(task: Task, data: DatasetDict) -> LabelledText:
    drawn = _first_of_each_text(task, _split(task, data, task.split))
    if task.heldout_split is None:
        names, examples = _labelled(task, [drawn])
        roles: dict[str, Examples] = {}
        wanted = {"heldout": task.heldout, "select": task.select, "alpha": task.alpha}
    else:
        heldout = _split(task, data, task.heldout_split)
        seen = set(_texts(task, heldout))
        drawn = drawn.select([i for i, text in enumerate(_texts(task, drawn)) if text not in seen])
        if not len(drawn):
            raise UserError(
                f"task '{task.name}': every text of split '{task.split}' stands in the held-out "
                f"split '{task.heldout_split}' too; nothing is left to train on"
            )
        names, examples = _labelled(task, [drawn, heldout])
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
    """One role as token ids. `label_order` maps the task's classes to those of the teacher."""

    def encode(texts: Sequence[tuple[str, ...]], length: int) -> tuple[list[list[int]], ...]:
        columns = [list(column) for column in zip(*texts, strict=True)]
        encoded = tokenizer(*columns, truncation=True, max_length=length)
        input_ids = encoded["input_ids"]
        # Not every kind of model tells the second text from the first: RoBERTa's and DistilBERT's
        # tokenizers say nothing of it.
        types = encoded.get("token_type_ids") or [[0] * len(ids) for ids in input_ids]
        return input_ids, types

    # One token more than is kept shows which texts are too long.
    input_ids, token_type_ids = encode(examples.texts, max_length + 1)
    too_long = [row for row, ids in enumerate(input_ids) if len(ids) > max_length]
    if too_long:
        shortened = encode([examples.texts[row] for row in too_long], max_length)
        for row, ids, types in zip(too_long, *shortened, strict=True):
            input_ids[row], token_type_ids[row] = ids, types
    labels = examples.labels
    return Split(
        role=role,
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        labels=labels if labels.dtype.kind == "f" else np.asarray(label_order)[labels],
        pad_token_id=tokenizer.pad_token_id,
        max_length=max_length,
        truncated=len(too_long),
    )


def metric_value(metric: Metric, labels: Labels, predictions: Labels) -> float:
    """The metric of predicted labels; higher is better. NaN if a predicted number is not finite."""
    if metric == "accuracy":
        return float(accuracy_score(labels, predictions))
    if metric == "mcc":
        return float(matthews_corrcoef(labels, predictions))
    if metric == "pearson_spearman":
        if not np.isfinite(predictions).all():
            return float("nan")
        pearson = _correlation(labels, predictions)
        return (pearson + _correlation(rankdata(labels), rankdata(predictions))) / 2
    average = "binary" if labels.max() <= 1 else "macro"
    return float(f1_score(labels, predictions, average=average, zero_division=0.0))


def _correlation(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Pearson's; 0 if either is constant (as Matthews'), where it is not defined."""
    if not np.ptp(one) or not np.ptp(other):
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


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
    if not len(rows):
        raise UserError(f"task '{task.name}': split '{split}' has no rows")
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


def _labelled(task: Task, parts: Sequence[Dataset]) -> tuple[list[str], list[Examples]]:
    """What the outputs stand for, and each part with its labels; rows are drawn from the first."""
    columns: list[list[Any]] = [list(part[task.label]) for part in parts]
    if any(None in column for column in columns):
        raise UserError(f"task '{task.name}': column '{task.label}' has rows without a label")
    names, labels = (
        ([task.label], _numbers(task, columns))
        if task.regression
        else _classes(task, parts[0].features[task.label], columns)
    )
    if len(np.unique(labels[0])) < 2:
        only = labels[0][0] if task.regression else names[labels[0][0]]
        raise UserError(f"task '{task.name}': column '{task.label}' has one label only: {only}")
    return names, [
        Examples(_texts(task, part), label) for part, label in zip(parts, labels, strict=True)
    ]


def _numbers(task: Task, columns: Sequence[Sequence[Any]]) -> list[Labels]:
    try:
        labels: list[Labels] = [np.array(column, dtype=np.float32) for column in columns]
        if not all(np.isfinite(label).all() for label in labels):
            raise ValueError("nan or infinite")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"task '{task.name}': metric '{task.metric}' needs numbers in column '{task.label}' "
            f"({error})"
        ) from error
    return labels


def _classes(
    task: Task, feature: Any, columns: Sequence[Sequence[Any]]
) -> tuple[list[str], list[Labels]]:
    if isinstance(feature, ClassLabel):
        values: list[Any] = list(range(feature.num_classes))
        names = list(feature.names)
    else:
        values = sorted({value for column in columns for value in column})
        names = [str(value) for value in values]
    index = {value: number for number, value in enumerate(values)}
    unknown = {value for column in columns for value in column} - set(index)
    if unknown:
        raise UserError(
            f"task '{task.name}': column '{task.label}' has {min(unknown, key=str)!r}, which is "
            f"none of its labels ({', '.join(names)}); an unlabelled split cannot be used"
        )
    return names, [
        np.array([index[value] for value in column], dtype=np.int64) for column in columns
    ]


def _take(task: Task, role: str, rows: int, examples: Examples) -> tuple[Examples, Examples]:
    """Split off `rows` rows, stratified by class; returns what is left and what was taken."""
    try:
        rest, taken = train_test_split(
            np.arange(len(examples.texts)),
            test_size=rows,
            random_state=task.seed,
            stratify=None if task.regression else examples.labels,
        )
    except ValueError as error:
        kind = "" if task.regression else "stratified "
        raise UserError(
            f"task '{task.name}': cannot take {rows} {kind}rows for '{role}' out of "
            f"{len(examples.texts)} ({error})"
        ) from error

    def part(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Examples:
        ordered = np.sort(places)
        return Examples([examples.texts[i] for i in ordered], examples.labels[ordered])

    return part(rest), part(taken)

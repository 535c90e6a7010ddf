"""A toy task of 60 distinct texts, whose labels "no" and "yes" take turns, and its roles."""

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from objectives.text.task import ROLES, LabelledText, Task

COUNT = 60
SIZES: dict[str, Any] = {"alpha": 6, "select": 8, "heldout": 10}
ROWS: list[tuple[Any, Any]] = [(f"text {row}", ("no", "yes")[row % 2]) for row in range(COUNT)]


def numbered(labels: Sequence[Any] = ("no", "yes"), rows: int = COUNT) -> Dataset:
    """Distinct texts; the labels take turns."""
    return dataset([(f"text {row}", labels[row % len(labels)]) for row in range(rows)])


def dataset(rows: Sequence[tuple[Any, Any]]) -> Dataset:
    """Rows of a text and a label."""
    return Dataset.from_dict({"text": [t for t, _ in rows], "label": [label for _, label in rows]})


def task_of(data: str | Callable[[], Any], **fields: Any) -> Task:
    """The task of this data, with small roles."""
    return Task(name="toy", data=data, **{**SIZES, **fields})


def texts_of(text: LabelledText) -> dict[str, list[tuple[str, ...]]]:
    """The texts of each role."""
    return {role: list(text.roles[role].texts) for role in ROLES}


def labels_of(text: LabelledText) -> dict[str, str]:
    """Each text, if there is one column of them, with the name of its label."""
    return {
        row[0]: text.label_names[label]
        for examples in text.roles.values()
        for row, label in zip(examples.texts, examples.labels, strict=True)
    }

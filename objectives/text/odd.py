"""What looks wrong about the texts or labels of a task and may be meant: lines for the user."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from objectives.errors import a_few
from objectives.metric import Labels
from objectives.text.task import ROLES, LabelledText, Task


def odd_labels(text: LabelledText) -> Iterator[str]:
    """Labels that differ in blanks or case alone, ids that are not 0 to n - 1, labels that no
    judging row has, and those that no row of train has; none of numbers."""
    if text.roles["train"].labels.dtype.kind == "f":
        return
    names, places = text.label_names, list(map(str, range(len(text.label_names))))
    if set(names) != set(places) and all(name.lstrip("-").isdecimal() for name in names):
        yield (
            f"the labels are ids other than 0 to {places[-1]} ({a_few(names)}): each is a class, "
            f"and output 0 stands for {names[0]}; if one marks rows without a label, leave them out"
        )
    spellings: dict[str, list[str]] = {}
    for name in text.label_names:
        spellings.setdefault("".join(name.split()).lower(), []).append(name)
    alike = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    if alike:
        more = f" and {len(alike) - 3:,} more such" if len(alike) > 3 else ""
        yield (
            "labels that differ only in blanks or case are separate classes: "
            f"{', '.join(alike[:3])}{more}; write them alike if they mean the same"
        )
    size = len(text.label_names)
    counts = {role: _counts(text.roles[role].labels, size) for role in ROLES}
    judged = {"selection": counts["select"], "held-out": counts["heldout"]}
    without = {
        what: [text.label_names[label] for label in np.flatnonzero((rows == 0) & some).tolist()]
        for some in [counts["train"] > 0]
        for what, rows in judged.items()
    }
    if any(without.values()):
        parts = [f"no {what} row has {a_few(own)}" for what, own in without.items() if own]
        yield f"labels of so few rows that metrics leave them out: {', '.join(parts)}"
    of_train = counts.pop("train")
    unseen = np.flatnonzero((of_train == 0) & (sum(counts.values()) > 0))
    if len(unseen):
        where = {role: rows[unseen].sum() for role, rows in counts.items()}
        elsewhere = ", ".join(f"{role} {rows:,}" for role, rows in where.items() if rows)
        names = a_few([text.label_names[label] for label in unseen.tolist()])
        have = "label {} has" if len(unseen) == 1 else "labels {} have"
        yield (
            f"{have.format(names)} no train rows, but other rows ({elsewhere}): leave these out, "
            "correct their labels, or add train rows"
        )


def _counts(labels: Labels, size: int) -> NDArray[np.int64]:
    """Rows of each label."""
    return np.bincount(labels, minlength=size) if labels.ndim == 1 else (labels == 1).sum(0)


def odd_texts(task: Task, text: LabelledText) -> Iterator[str]:
    """Texts of a CSV that hold whole rows of it: a field that begins with a quote goes on to the
    next quote, over the rows between them."""
    if not isinstance(task.data, Mapping) or not task.classes:
        return
    found: list[str] = []
    for split, file in task.data.items():
        names = file.header() if file.delimiter else []
        if not {*task.columns, *task.label_columns} <= set(names):  # pandas makes up some names
            continue
        place, labels = names.index(task.label_columns[0]), set(text.label_names)
        found += (
            value
            for role in ROLES
            if task.heldout_split is None or (role == "heldout") == (split == task.heldout_split)
            for row in text.roles[role].texts
            for column, value in zip(task.columns, row, strict=True)
            if any(
                len(fields) == len(names) > 1 and fields[place] in labels
                for fields in _rows_in(value, names.index(column), file.delimiter)
            )
        )
    if found:
        have = "1 text holds" if len(found) == 1 else f"{len(found):,} texts hold"
        yield (
            f"{have} what looks like rows of the CSV ({a_few(found)}): does a field begin with a "
            "quote that nothing closes? Put that field in quotes and write the quote twice"
        )


def _rows_in(text: str, column: int, delimiter: str) -> Iterator[Sequence[str]]:
    """The fields of the whole lines of a text that stands in this column of a CSV."""
    for line in (delimiter * column + text).split("\n")[:-1]:
        yield line.rstrip("\r").split(delimiter)

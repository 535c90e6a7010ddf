"""Texts of a CSV that hold whole rows of it, as a line for the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from objectives.errors import a_few
from objectives.text.task import ROLES, LabelledText, Task


def odd_texts(task: Task, text: LabelledText) -> Iterator[str]:
    """A field that begins with a quote goes on to the next quote, over the rows between them.

    A line of a text is such a row if it has as many fields as the file has columns, and a label
    where the label stands; of the first line the fields up to the text are elsewhere.
    """
    if not isinstance(task.data, Mapping) or not task.classes:
        return
    found: list[str] = []
    for split, file in task.data.items():
        names = file.header() if file.delimiter else []
        if not {*task.columns, task.label} <= set(names):  # pandas makes up some names
            continue
        whole = _Whole(file.delimiter, names, names.index(task.label), set(text.label_names))
        of_split = [
            role
            for role in ROLES
            if task.heldout_split is None or (role == "heldout") == (split == task.heldout_split)
        ]
        found += (
            value
            for role in of_split
            for row in text.roles[role].texts
            for column, value in zip(task.columns, row, strict=True)
            if "\n" in value and whole.stand_in(value, column)
        )
    if found:
        have = "1 text holds" if len(found) == 1 else f"{len(found):,} texts hold"
        yield (
            f"{have} what looks like rows of the CSV ({a_few(found)}): does a field begin with a "
            "quote that nothing closes? Put that field in quotes and write the quote twice"
        )


@dataclass(frozen=True)
class _Whole:
    """Whole rows of a CSV."""

    delimiter: str
    names: list[str]
    label: int
    labels: set[str]

    def stand_in(self, value: str, column: str) -> bool:
        before = self.delimiter * self.names.index(column)
        lines = (before + value).split("\n")[:-1]
        rows = [line.rstrip("\r").split(self.delimiter) for line in lines]
        return any(len(r) == len(self.names) > 1 and r[self.label] in self.labels for r in rows)

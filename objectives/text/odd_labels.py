"""What looks wrong about the labels of a task and may be meant: a line each, for the user."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from objectives.errors import a_few
from objectives.text.task import ROLES, LabelledText


def odd_labels(text: LabelledText) -> Iterator[str]:
    """Labels that differ in blanks or case alone, and those that no row of train has.

    Numbers (regression) are never odd.
    """
    if text.roles["train"].labels.dtype.kind == "f":
        return
    spellings: dict[str, list[str]] = {}
    for name in text.label_names:
        spellings.setdefault("".join(name.split()).lower(), []).append(name)
    alike = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    if alike:
        more = f" and {len(alike) - 3:,} more such" if len(alike) > 3 else ""
        yield (
            "labels that differ only in blanks or case are classes of their own: "
            f"{', '.join(alike[:3])}{more}; write them alike where they mean the same"
        )
    size = len(text.label_names)
    counts = {role: np.bincount(text.roles[role].labels, minlength=size) for role in ROLES}
    of_train = counts.pop("train")
    unseen = np.flatnonzero((of_train == 0) & (sum(counts.values()) > 0))
    if len(unseen):
        where = {role: rows[unseen].sum() for role, rows in counts.items()}
        elsewhere = ", ".join(f"{role} {rows:,}" for role, rows in where.items() if rows)
        names = a_few([text.label_names[label] for label in unseen.tolist()])
        stand = "label {} stands" if len(unseen) == 1 else "labels {} stand"
        yield (
            f"{stand.format(names)} in no row of train, but in others ({elsewhere}): leave these "
            "out, correct their labels, or give train some"
        )

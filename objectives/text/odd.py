"""Notes for the user on labels that look wrong and may be meant."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from objectives.errors import a_few
from objectives.metric import Labels
from objectives.text.task import ROLES, LabelledText


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

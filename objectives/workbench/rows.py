"""The rows of a study as tokens: those of its roles, and those that students learn from."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from objectives.errors import a_few
from objectives.session import Session
from objectives.text.augmentation import augment
from objectives.text.data import Split, no_labels
from objectives.text.task import ROLES, Examples, LabelledText, tokenise
from objectives.workbench.fidelity import Fidelity
from objectives.workbench.inputs import Inputs, check_tokens


def notes_on_rows(inputs: Inputs, splits: Mapping[str, Split]) -> Iterator[str]:
    """Notes for the user: how many rows, how many cut off, which labels look wrong."""
    yield inputs.text.read
    cut_off = [
        f"{role} {split.truncated:,} of {len(split):,}"
        for role, split in splits.items()
        if split.truncated
    ]
    if cut_off:
        yield (
            f"texts longer than {inputs.task.max_length} tokens (max_length) are cut off: "
            f"{', '.join(cut_off)}"
        )
    if inputs.task.labelled:
        yield from odd_labels(inputs.text)


def rows_of_students(
    inputs: Inputs, splits: Mapping[str, Split], fidelity: Fidelity, session: Session
) -> tuple[Split, Examples, Split]:
    """Rows that students learn from, train, also as text, and alpha: augmented, and cut by the
    fidelity."""
    roles = inputs.text.roles
    train = roles["train"]
    if inputs.augmenter is not None:
        train = augment(inputs.augmenter, roles, session)
    if more := inputs.text.unlabelled:
        labels = np.concatenate([train.labels, no_labels(len(more), train.labels)])
        train = Examples([*train.texts, *more], labels)
    length = min(fidelity.max_length or inputs.task.max_length, inputs.task.max_length)

    def split(role: str, rows: Examples) -> Split:
        if rows is roles[role] and length == inputs.task.max_length:
            return splits[role]
        tokens = tokenise(rows, role, inputs.tokenizer, length, inputs.task.truncation)
        check_tokens(inputs, [tokens])
        return tokens

    alpha = replace(split("alpha", roles["alpha"]), labels=splits["alpha"].labels)
    tokens, rows = split("train", train), share_of(len(train.texts), fidelity.data, session.seed)
    some = Examples([train.texts[row] for row in rows], train.labels[rows])
    return (tokens if len(rows) == len(tokens) else tokens.at(rows)), some, alpha


def share_of(rows: int, share: float, seed: int) -> NDArray[np.int64]:
    """The places of a share of the rows, in (0, 1], in their order."""
    if share == 1:
        return np.arange(rows)
    count = max(1, round(share * rows))
    return np.sort(np.random.default_rng(seed).permutation(rows)[:count])


def features_of(train: Split, select: Split, teacher: float) -> dict[str, float]:
    """Meta-features of a task, after auto-sklearn (Feurer et al. 2015)."""
    # Logarithms of its number of labelled rows and of their mean length in tokens; classes of rows
    # with labels or answers, 1 for numbers; their entropy in nats; and the teacher's metric on
    # them.
    counts = np.unique(select.labels, axis=0, return_counts=True)[1]
    shares = np.ones(1) if select.regression else counts / counts.sum()
    return {
        "rows": math.log(len(train)),
        "length": math.log(float(train.lengths.mean())),
        "classes": float(len(shares)),
        "entropy": float(-(shares * np.log(shares)).sum()),
        "teacher": teacher,
    }


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
    counts = {
        role: np.bincount(labels, minlength=size) if labels.ndim == 1 else (labels == 1).sum(0)
        for role in ROLES
        for labels in [text.roles[role].labels]
    }
    judged = {"selection": counts["select"], "held-out": counts["heldout"]}
    without = {
        what: [text.label_names[label] for label in np.flatnonzero((rows == 0) & some).tolist()]
        for some in [counts["train"] > 0]
        for what, rows in judged.items()
    }
    if any(without.values()):
        parts = [f"no {what} row has {a_few(lost)}" for what, lost in without.items() if lost]
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

"""The rows of a study as tokens: those of its roles, and those that students learn from."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from objectives.session import Session
from objectives.text.augmentation import augment
from objectives.text.data import Split, no_labels
from objectives.text.odd import odd_labels
from objectives.text.task import Examples, tokenise
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
    """The places of a share of so many rows, in (0, 1], in their order."""
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

"""Draw a task's rows into four disjoint roles. A row without a role is its index, a hash of its
text and its label, 24 bytes. Drawing takes some 150 bytes a row at its peak."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from objectives.errors import UserError, a_few
from objectives.metric import Labels
from objectives.text.reading import read
from objectives.text.scanning import Rows, scan
from objectives.text.task import Examples, LabelledText, Task

_SOME = 64  # texts that a survey reads
_WHOLE = re.compile(r"([+-]?(?:0|[1-9]\d*))(?:\.0*)?")
_REAL = re.compile(r"[+-]?\d*\.\d+")


def load_text(task: Task) -> LabelledText:
    """Read the data and draw the roles. Raises UserError for missing data and too few rows."""
    with TemporaryDirectory() as cache:  # for what `datasets` makes of local files
        return _in_roles(task, read(task, cache))


@dataclass(frozen=True)
class Survey:
    """Counts of the rows before any role is drawn."""

    texts: int
    """Number of different texts of the split to draw from; with a label if the task has any."""
    some: Examples
    """A few of them, evenly spaced, without labels."""
    labels: int
    """Number of different labels; 1 if the task reads none."""


class _Counts:
    """Rows that were read of a split, and a description of those left out."""

    def __init__(self, rows: Rows, *, labelled: bool):
        self.read, self.out = len(rows.data), list[str]()
        self.leave_out(self.read - len(rows), f"without a text{' or a label' * labelled}")

    def leave_out(self, count: int, which: str) -> None:
        if count:
            self.out.append(f"{count:,} {which}")

    def __str__(self) -> str:
        read = f"{self.read:,} row{'s' * (self.read != 1)} read"
        return f"{read}; left out: {', '.join(self.out)}" if self.out else read


def survey(task: Task) -> Survey:
    """Count the texts of a task. Raises UserError for what `load` refuses of a file."""
    with TemporaryDirectory() as cache:
        data = read(task, cache)
        rows = scan(task, data, task.split, labelled=task.labelled)
        _, first = np.unique(rows.texts, return_index=True)
        indices = np.sort(first)[:: -(-len(first) // _SOME)]
        labels = len(np.unique(rows.labels[first]))
        return Survey(len(first), _examples(task, rows.at(indices)), labels)


def _in_roles(task: Task, data: Mapping[str, Dataset]) -> LabelledText:
    all_rows = scan(task, data, task.split, labelled=task.labelled)
    drawn, counts, differing = _first_of_each_text(task, all_rows)
    roles: dict[str, Rows] = {}
    wanted = {"heldout": task.heldout, "select": task.select, "alpha": task.alpha}
    labels = len(np.unique(drawn.labels))
    if task.heldout_split is not None:
        roles["heldout"] = scan(task, data, task.heldout_split, labelled=task.labelled)
        elsewhere = ~np.isin(drawn.texts, roles["heldout"].texts)
        counts.leave_out(len(drawn) - elsewhere.sum(), "whose text is held out")
        drawn = drawn.at(elsewhere)
        del wanted["heldout"]
        if not len(drawn):
            raise task.refusal(
                f"every text of split '{task.split}' is also in the held-out split "
                f"'{task.heldout_split}'; nothing is left to train on"
            )
    names = list(task.label_columns) if task.regression else []
    if task.labelled and not task.regression:
        named = _several if task.multi_label else _classed
        names, (drawn, *heldout) = named(task, [drawn, *roles.values()])
        roles = dict(zip(roles, heldout, strict=True))
    if task.labelled and len(np.unique(drawn.labels, axis=0)) < 2:
        raise _one_label(task, drawn, names, counts, differing, labels)
    rest = drawn
    for role, rows in wanted.items():
        number = max(1, round(rows * len(rest))) if isinstance(rows, float) else rows
        rest, roles[role] = _take(task, role, number, rest, names)
    if task.train is not None and task.train < len(rest):
        beyond, rest = _take(task, "train", task.train, rest, names)
        if task.unlabelled_split != task.split:
            counts.leave_out(len(beyond), f"more than the {task.train} to train on")
    elif task.train is not None and task.train > len(rest):
        raise task.refusal(
            f"train={task.train}, but only {len(rest)} rows are left after the other roles; leave "
            "train out to take them all"
        )
    roles["train"] = rest
    _check_seen(task, roles["heldout"], rest, names)
    read = _what_was_read(task, counts, roles)
    texts: Sequence[tuple[str, ...]] = ()
    if task.unlabelled_split is not None:
        more, counted = _unlabelled(task, data, task.unlabelled_split, drawn, roles)
        texts, read = _examples(task, more).texts, f"{read}; {counted}"
    return LabelledText(
        {role: _examples(task, rows) for role, rows in roles.items()}, names, texts, read
    )


def _check_seen(task: Task, heldout: Rows, train: Rows, names: Sequence[str]) -> None:
    """Raise UserError for held-out rows of a class without train rows."""
    unseen = ~np.isin(heldout.labels, train.labels)
    if task.classes and unseen.any():
        some = a_few([names[label] for label in np.unique(heldout.labels[unseen]).tolist()])
        raise task.refusal(
            f"{np.count_nonzero(unseen):,} rows of the held-out split '{task.heldout_split}' have "
            f"labels that no train row has ({some}); correct them, leave these rows out, or add "
            "train rows"
        )


def _one_label(
    task: Task, rows: Rows, names: Sequence[str], counts: _Counts, differing: int, labels: int
) -> UserError:
    """Error for rows of one label, of the `labels` that the data had."""
    only = ", ".join(np.array(names)[rows.labels[0] == 1]) if task.multi_label else rows.labels[0]
    if task.classes:
        only = names[rows.labels[0]]
    if not differing and labels < 2:
        return task.refusal(f"column '{task.label}' has one label only: {only}")
    remedy = "give equal texts one label" if differing else "add rows of other labels"
    return task.refusal(
        f"the rows that are left have one label only in column '{task.label}': {only} ({counts}); "
        f"{remedy}"
    )


def _unlabelled(
    task: Task, data: Mapping[str, Dataset], split: str, drawn: Rows, roles: Mapping[str, Rows]
) -> tuple[Rows, str]:
    """Rows of a split without a role, and their number in words; `drawn` could have had one."""
    all_rows = scan(task, data, split, labelled=False)
    used = np.concatenate([rows.texts for rows in roles.values()])
    first = np.sort(np.unique(all_rows.texts, return_index=True)[1])
    rows = all_rows.at(first[~np.isin(all_rows.texts[first], used)])
    if not len(rows):
        raise task.refusal(
            f"unlabelled_split '{split}' has only texts that other roles use; name another split "
            "or file, or leave it out"
        )
    if (beyond := len(rows) - (task.unlabelled or len(rows))) > 0:
        drawn_at = np.random.default_rng(task.seed).permutation(len(rows))[beyond:]
        rows = rows.at(np.sort(drawn_at))
    counted = f"unlabelled {len(rows):,}"
    if split == task.split:
        lacking = np.count_nonzero(~np.isin(rows.texts, drawn.texts))
        return rows, f"{counted} ({lacking:,} of these without a label)" if lacking else counted
    counts = _Counts(all_rows, labelled=False)
    counts.leave_out(len(all_rows) - len(rows), "of equal text")
    return rows, f"split '{split}': {counts}; {counted}"


def _first_of_each_text(task: Task, rows: Rows) -> tuple[Rows, _Counts, int]:
    """Keep the first row of each text; count the others, and those of them with another label."""
    texts, first = np.unique(rows.texts, return_index=True)
    counts = _Counts(rows, labelled=task.labelled)
    if len(first) == len(rows):
        return rows, counts, 0
    later = np.ones(len(rows), dtype=np.bool_)
    later[first] = False
    earlier = first[np.searchsorted(texts, rows.texts[later])]
    labels = rows.labels
    if rows.values:
        numbers = [number_of(value) for value in rows.values]
        meant = [v if n is None else n for v, n in zip(rows.values, numbers, strict=True)]
        indices = {value: index for index, value in enumerate(meant)}
        labels = np.array([indices[value] for value in meant])[labels]
    differing = int(np.count_nonzero(labels[later] != labels[earlier]))
    among = f" ({differing:,} of these with another label than the first)" if differing else ""
    counts.leave_out(len(rows) - len(first), f"of equal text{among}")
    return rows.at(np.sort(first)), counts, differing


def _what_was_read(task: Task, counts: _Counts, roles: Mapping[str, Rows]) -> str:
    """Describe in one line the rows of each split, those left out, and those of each role."""
    names = {"train": "train", "alpha": "alpha", "select": "selection", "heldout": "held out"}
    *sizes, heldout = (f"{name} {len(roles[role]):,}" for role, name in names.items())
    if task.heldout_split is None:
        return f"{counts}; {', '.join(sizes)}, {heldout}"
    apart = _Counts(roles["heldout"], labelled=task.labelled)
    return (
        f"split '{task.split}': {counts}; {', '.join(sizes)}; "
        f"split '{task.heldout_split}': {apart}; {heldout}"
    )


def _label_feature(task: Task, parts: Sequence[Rows]) -> Any:
    """Feature of the labels. Raises UserError if two splits number their classes differently."""
    features = [part.data.features[task.label_columns[0]] for part in parts]
    kinds = [getattr(feature, "feature", feature) for feature in features]  # of lists, or itself
    named = [kind.names for kind in kinds if isinstance(kind, ClassLabel)]
    for names in named:
        if names != named[0]:
            raise task.refusal(
                f"the splits number the classes of column '{task.label}' differently, by "
                f"{a_few(named[0])} and by {a_few(names)}; cast both to one ClassLabel"
            )
    return features[0]


def _classed(task: Task, parts: Sequence[Rows]) -> tuple[list[str], list[Rows]]:
    """Names of the classes, and the parts with class indices as labels."""
    present = {part.values[code] for part in parts for code in np.unique(part.labels)}
    feature = _label_feature(task, parts)
    if isinstance(feature, ClassLabel):
        classes = {number: number for number in range(feature.num_classes)}
        names = list(map(str.strip, feature.names))
    else:
        meant = _meant(task, present)
        try:
            ordered = sorted(set(meant.values()))
        except TypeError as error:
            splits = zip((task.split, task.heldout_split), parts, strict=False)
            kinds = (f"{type(part.values[0]).__name__}s in '{split}'" for split, part in splits)
            raise task.refusal(
                f"the labels in column '{task.label}' have another type in each split "
                f"({', '.join(kinds)}); use one type in both"
            ) from error
        names = [str(value) for value in ordered]
        index = {value: number for number, value in enumerate(ordered)}
        classes = {value: index[meant[value]] for value in present}
    unknown = present - set(classes)
    if unknown:
        raise task.refusal(
            f"column '{task.label}' has {min(unknown, key=str)!r}, which is not one of its labels "
            f"({', '.join(names)}); an unlabelled split cannot be used"
        )
    return names, [
        replace(part, labels=np.array([classes.get(v, -1) for v in part.values])[part.labels])
        for part in parts
    ]


def _several(task: Task, parts: Sequence[Rows]) -> tuple[list[str], list[Rows]]:
    """Names of the labels in order; the parts with labels (rows, C), each name's 1 or 0."""
    feature = _label_feature(task, parts)
    inner = getattr(feature, "feature", None)  # of a list
    if not isinstance(task.label, str):
        names = list(task.label)
    elif isinstance(inner, ClassLabel):
        names = list(map(str.strip, inner.names))
        if any(int(label) < 0 for part in parts for row in part.values for label in row):
            raise task.refusal(f"column '{task.label}' has -1, which is not one of its labels")
        named = [[{names[int(label)] for label in row} for row in part.values] for part in parts]
        parts = [replace(part, values=row) for part, row in zip(parts, named, strict=True)]
    else:
        labels = {name for part in parts for values in part.values for name in values}
        numbers: dict[str, Any] = {name: number_of(name) for name in labels}
        integers = all(isinstance(number, int) for number in numbers.values())
        names = sorted(labels, key=lambda name: numbers[name] if integers else name)
    if len(names) < 2:
        raise task.refusal(
            f"column '{task.label}' has {len(names)} labels ({a_few(names)}); with "
            "multi_label=True there must be two or more"
        )
    labelled = []
    for part in parts:
        sets = np.array([[name in row for name in names] for row in part.values], np.int8)
        labelled.append(replace(part, labels=sets[part.labels]))
    return names, labelled


def _meant(task: Task, labels: set[Any]) -> dict[Any, Any]:
    """Value of each label: a whole number if all are, as 2, 2.0, "2" or "2.0"."""
    numbers = {label: number_of(label) for label in labels}
    if None in numbers.values():
        return {label: label for label in labels}
    real = [number for number in numbers.values() if isinstance(number, float)]
    if real:
        raise task.refusal(
            f"column '{task.label}' has numbers such as {min(real)}, which cannot be classes; set "
            "metric='pearson_spearman' to predict numbers, or use words as class labels"
        )
    return numbers


def number_of(label: Any) -> int | float | None:
    """Parse a label as a number, an int if it is whole; None if it is no number."""
    if isinstance(label, str):
        if integer := _WHOLE.fullmatch(label):
            return int(integer[1])
        return float(label) if _REAL.fullmatch(label) else None
    if isinstance(label, float):
        return int(label) if label.is_integer() else label
    return label if isinstance(label, int) and not isinstance(label, bool) else None


def _take(
    task: Task, role: str, wanted: int, rows: Rows, names: Sequence[str]
) -> tuple[Rows, Rows]:
    """Split off rows, stratified by class: the rest, and these. Train keeps one of rare classes."""
    drawn, rare, strata = np.arange(len(rows)), np.arange(0), None
    if task.classes:
        share = wanted / len(rows) if role == "train" else 1 - wanted / len(rows)
        _, first, counts = np.unique(rows.labels, return_index=True, return_counts=True)
        rare = first[counts * share < 1]
        drawn = np.setdiff1d(drawn, rare)
        strata = _strata(rows.labels[drawn])
    kept_of = (0, len(rare)) if role == "train" else (len(rare), 0)
    if reason := _too_few(task, wanted, rows, strata, kept_of, names):
        kind = "stratified " if task.classes else ""
        raise task.refusal(
            f"cannot take {wanted} {kind}rows for '{role}' out of {len(rows)}: {reason}"
        )
    from sklearn.model_selection import train_test_split  # as in `metric_value`

    of_train = int(role == "train")
    parts = train_test_split(
        drawn, test_size=wanted - len(rare) * of_train, random_state=task.seed, stratify=strata
    )
    parts[of_train] = np.concatenate([parts[of_train], rare])
    rest, taken = (rows.at(np.sort(part)) for part in parts)
    return rest, taken


def _strata(labels: Labels) -> Labels:
    """Strata (rows,): classes; -1 for all classes of one row, as each stratum needs two."""
    if not len(labels):  # of ids
        return labels
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    single = counts[index] == 1
    together = -1 if np.count_nonzero(single) > 1 else classes[counts.argmax()]
    return np.asarray(np.where(single, together, labels))


def _too_few(
    task: Task,
    wanted: int,
    rows: Rows,
    strata: Labels | None,
    reserved: tuple[int, int],
    names: Sequence[str],
) -> str:
    """Remedy if rows cannot be taken, else empty; `reserved` rows stay, and are surely taken."""
    if wanted >= len(rows):
        return (
            f"heldout={task.heldout}, select={task.select} and alpha={task.alpha} are taken first; "
            "set them to fewer rows"
        )
    if strata is None:
        return ""
    counts = np.bincount(rows.labels)
    classes, single = np.count_nonzero(counts), np.flatnonzero(counts == 1)
    many = f"; is '{task.label}' a column of labels, or of ids?" * int(classes > len(rows) // 4)
    if many and len(single):
        some = a_few([names[int(label)] for label in single])
        return f"{len(single):,} of the {classes:,} labels have only one row left ({some}){many}"
    each = len(np.unique(strata))
    least, most = each + reserved[1], len(rows) - each - reserved[0]
    if not least <= wanted <= most:
        return (
            "what is taken and what is left need a row of each label; take "
            f"{least:,} to {most:,}{many}"
        )
    return ""


def _examples(task: Task, rows: Rows) -> Examples:
    chosen = rows.data.select(rows.indices)
    columns = [list(chosen[column]) for column in task.columns]
    return Examples([tuple(map(str, texts)) for texts in zip(*columns, strict=True)], rows.labels)

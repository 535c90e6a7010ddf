"""Logits of a run's models on the selection and held-out rows, as files for cascades, ensembles and
paired comparisons. In float32, so that the likeliest class is the one that was scored. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from objectives.cache import atomic_write
from objectives.metric import OF_CLASSES, Logits, Metric, metric_value
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder

OwnMetric: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], float]
"""A function of labels and answers, both (rows,) int64, indices of classes; higher is better."""

_ROLES = ("select", "heldout")
_TEACHER = "teacher."
# Root mean square of a difference, as a share of the spread of the logits: processors and GPUs
# differ by 1e-3 of it at most, another fine-tuning by 0.1 and more.
_ROUNDING = 0.01


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Labels of the selection and held-out rows, and the unpruned model's logits on them."""

    labels: Mapping[str, NDArray[Any]]
    """(rows,) of "select" and "heldout": int64, classes; or float32, numbers. Where the task has
    none, the classes that the teacher named."""
    unpruned: Mapping[str, Logits]  # of the teacher in the study's engine


def write_rows(
    folder: RunFolder,
    labels: Mapping[str, NDArray[Any]],
    unpruned: Mapping[str, Logits],
    teachers: Mapping[str, Logits],
) -> None:
    """Write what `read_rows` and `check_teachers` read, unless it exists. Raises OSError."""
    if _read(folder.rows):
        return
    arrays = {f"labels.{role}": labels[role] for role in _ROLES}
    arrays |= {role: unpruned[role] for role in _ROLES}
    arrays |= {f"{_TEACHER}{task}": logits for task, logits in teachers.items()}
    with folder.in_turn("rows"), atomic_write(folder.rows) as unfinished:
        unfinished.write_bytes(save(arrays))  # save_file would write for this account alone


def check_teachers(folder: RunFolder, teachers: Mapping[str, Logits]) -> None:
    """Raise RunError if logits (rows, C) of the selection rows, by task, are not the run's own."""
    arrays = _read(folder.rows) or {}
    for task, logits in teachers.items():
        was = arrays.get(f"{_TEACHER}{task}", logits)
        off = np.sqrt(np.mean((logits - was) ** 2)) / max(np.std(was), 1e-6)
        if not off <= _ROUNDING:
            raise RunError(
                f"the teacher of '{folder.path}' was made again, and its logits on the selection "
                f"rows differ by {off:.0%} of their spread: put '{folder.cache}' back from a copy, "
                "or delete it and launch on the machine that made it, or choose another folder",
                "out",
            )


def read_rows(run: RunRecord) -> JudgedRows | None:
    """Read labels and the unpruned model's logits; None if there are none or they are damaged."""
    arrays = _read(RunFolder(run.folder).rows)
    try:
        labels = {role: arrays[f"labels.{role}"] for role in _ROLES}
        rows = JudgedRows(labels, {role: arrays[role] for role in _ROLES})
        alike = all(len(rows.labels[role]) == len(rows.unpruned[role]) for role in _ROLES)
    except (KeyError, TypeError):
        return None
    return rows if alike else None


def write_answers(file: Path, answers: Mapping[str, Logits]) -> None:
    """Write the logits of "select" and "heldout"."""
    file.write_bytes(save({role: np.ascontiguousarray(answers[role]) for role in _ROLES}))


def read_answers(run: RunRecord, trial: int) -> dict[str, Logits] | None:
    """Read the logits of a trial's model; None if they are missing or not of these rows."""
    folder = RunFolder(run.folder)
    arrays = _read(folder.answers(trial))
    try:
        with safe_open(folder.rows, framework="np") as rows:
            alike = all(rows.get_slice(r).get_shape() == [*arrays[r].shape] for r in _ROLES)
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return arrays if alike else None


def other_values(run: RunRecord, metric: Metric | OwnMetric) -> dict[int, dict[str, float]]:
    """Score finished trials by another metric: its value on "select" and "heldout", by trial.
    Raises RunError for regression, for several labels a text, and without kept logits."""
    if not callable(metric) and metric not in OF_CLASSES:
        names = ", ".join(OF_CLASSES)
        raise RunError(f"no metric '{metric}'; choose {names}, or a function", "metric")
    judged = read_rows(run)
    if judged is None:
        raise RunError(f"'{run.folder}' has no answers of its models: an earlier version made it")
    if judged.labels["select"].ndim != 1 or judged.labels["select"].dtype.kind != "i":
        raise RunError("only answers that are one class a text can be judged anew", "metric")
    classes = judged.unpruned["select"].shape[-1]

    def value(labels: NDArray[Any], logits: Logits) -> float:
        if callable(metric):
            return float(metric(labels, logits.argmax(-1)))
        return metric_value(metric, labels, logits.argmax(-1), classes=classes)

    answers = {trial.number: read_answers(run, trial.number) for trial in run.finished}
    return {
        number: {role: value(judged.labels[role], logits[role]) for role in _ROLES}
        for number, logits in answers.items()
        if logits is not None
    }


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        if not file.is_file():  # a stranger's pipe would be read for ever
            return {}
        file.open("rb").close()  # safetensors calls a file that may not be read missing
        return dict(load_file(file))
    except (FileNotFoundError, SafetensorError):
        return {}
    except PermissionError as error:
        raise RunError(f"'{file}' may not be read by this account") from error

"""Definition of a study, by which runs are compared, and the sources that the user named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import distribution_to_json

from objectives.errors import hide_passwords
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Task
from objectives.workbench.fidelity import FULL
from objectives.workbench.teacher import LATER
from orchestrator.study import Study

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def definition_of(
    study: Study,
    data: str,
    checkpoint: str,
    student: str | None = None,
    augmentation: Mapping[str, object] | None = None,
    beside: Mapping[str, tuple[str, str]] | None = None,
) -> dict[str, str]:
    """Everything that decides a trial's result, by name: settings and fingerprints of inputs."""
    # A folder's name and a function's identity do not count, but what they hold does.
    parts: dict[str, Any] = {
        "name": study.name,
        "seed": study.seed,
        "student": student,
        "student_layers": study.student_layers,
        "cost": study.cost,
        "seq_len": study.task.max_length if study.seq_len is None else study.seq_len,
        "task.data": data,
        **_of_task("task", study.task),
        **dict(_settings(study)),
        "teacher.checkpoint": checkpoint,
        "method": study.method_name,
    }
    parts |= {f"augmentation.{name}": value for name, value in (augmentation or {}).items()}
    if study.beside:
        parts["beside"] = ", ".join(extra.task.name for extra in study.beside)
    for extra in study.beside:
        path, (text, model) = f"beside.{extra.task.name}", (beside or {})[extra.task.name]
        parts |= {f"{path}.data": text, **dict(_entries(f"{path}.teacher", extra.teacher))}
        parts |= _of_task(path, extra.task)
        parts[f"{path}.teacher.checkpoint"] = model
    parts |= {f"space.{name}": distribution_to_json(d) for name, d in study.knobs.items()}
    return {name: str(value) for name, value in parts.items()}


def sources_of(study: Study) -> dict[str, str]:
    """Names of the sources for people: ends of paths, so that a card reveals no home directory."""
    task = study.task
    first, *second = task.columns
    licenses = dict.fromkeys(model.license for model in study.teacher.models)
    named = {
        "task": task.name,
        **_data_names(task),
        "text": first,
        "text pair": second[0] if second else None,
        "label": ", ".join(task.label_columns) if task.labelled else None,
        "teacher": " + ".join(map(_end_of_path, study.teacher.checkpoints)) or None,
        "teacher license": ", ".join(filter(None, licenses)) or None,
        "teacher answers": Path(study.teacher.answers or "").name or None,
    }
    for extra in study.beside:
        data = _data_names(extra.task) | {"teacher": _end_of_path(extra.teacher.name)}
        named |= {f"{what} of {extra.task.name}": text for what, text in data.items()}
    if study.student is not None:
        named["student"] = _end_of_path(study.student)
        named["student license"] = Checkpoint(study.student).license
    return {name: hide_passwords(text) for name, text in named.items() if text is not None}


def _of_task(path: str, task: Task) -> dict[str, object]:
    """Entries that decide results beside the text; newer ones only where not the default."""
    entries = {name: getattr(task, name) for name in ("metric", "max_length")}
    for name in ("multi_label", "thresholds", "truncation"):
        if (value := getattr(task, name)) != getattr(type(task), name):
            entries[name] = value
    return {f"{path}.{name}": value for name, value in entries.items()}


def _settings(study: Study) -> Iterator[tuple[str, object]]:
    for name in ("objective", "engine", "latency_batch"):
        if getattr(study, name) != getattr(Study, name):
            yield name, getattr(study, name)
    for where, aims in (("at_least", study.at_least), ("at_most", study.at_most)):
        yield from ((f"{where}.{name}", aim) for name, aim in aims.items())
    yield from ((f"teacher.{name}", value) for name, value in study.teacher.fine_tuning.items())
    if study.teacher.engine != "eager":
        yield "teacher.engine", study.teacher.engine
    if study.fidelity != FULL:
        yield from _entries("fidelity", study.fidelity)
    tuned = {f"method.{name}" for name in study.space}
    for name, method in study.methods.items():
        entries = _entries(f"method.{name}" if name else "method", method)
        yield from (entry for entry in entries if entry[0] not in tuned)


def _entries(path: str, owner: DataclassInstance) -> Iterator[tuple[str, object]]:
    for field in fields(owner):
        name, value = f"{path}.{field.name}", getattr(owner, field.name)
        unset = field.metadata == LATER and value == field.default
        if unset or not field.compare:  # a folder, which decides nothing
            continue
        if is_dataclass(value) and not isinstance(value, type):
            yield from _entries(name, value)
        elif isinstance(value, tuple) and any(hasattr(entry, "name") for entry in value):
            yield name, ", ".join(entry.name for entry in value)
            for entry in value:
                inner = f"{name}.{entry.name}"
                yield from (item for item in _entries(inner, entry) if item[0] != f"{inner}.name")
        else:
            yield name, value


def _data_names(task: Task) -> dict[str, str]:
    data = task.data
    if isinstance(data, Mapping):
        names = {split: file.path.name for split, file in data.items()}
        of_splits = {
            "data": task.split,
            "held-out data": task.heldout_split,
            "unlabelled data": task.unlabelled_split,
        }
        return {what: names[split] for what, split in of_splits.items() if split}
    function = getattr(data, "__name__", type(data).__name__)
    name = _end_of_path(data) if isinstance(data, str) else f"{function}()"
    named = {"data": " ".join(filter(None, [name, task.subset]))}
    more = task.unlabelled_split
    return named if more is None else {**named, "unlabelled data": f"split {more}"}


def _end_of_path(name: str) -> str:
    """Name on the hub; for a folder the last two parts of its path."""
    path = Path(name)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else name

"""Settings of a method by path: what a study may tune.

A path names a field ("target_ratio"), a field of one of a tuple of named things
("stages.recover.learning_rate"), an entry of a tuple ("heads[3]"), or what stands in one that has
no name ("nodes[2].operations[0]").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from objectives.errors import check_spelling

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Owner = TypeVar("Owner", bound="DataclassInstance")


def settings(owner: DataclassInstance) -> dict[str, Any]:
    """Values of a method, or of another dataclass, by path."""
    return {
        path: value
        for field in fields(owner)
        for path, value in _paths(field.name, getattr(owner, field.name))
    }


def with_knobs(owner: Owner, knobs: Mapping[str, Any]) -> Owner:
    """Copy with other values at these paths. Raises UserError for an unknown path."""
    paths = settings(owner)
    check_spelling(type(owner).__name__, knobs, paths)
    changes = {f.name: _changed(f.name, getattr(owner, f.name), knobs) for f in fields(owner)}
    return replace(owner, **changes)


def matches(path: str, patterns: Set[str]) -> bool:
    """Whether one of the patterns names the path; "*" stands for anything."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _paths(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, tuple):
        yield name, value
        return
    for number, entry in enumerate(value):
        named: bool = is_dataclass(entry)  # `if is_dataclass(entry)` would hide the name from mypy
        if named:
            for inner in fields(entry):
                if inner.name != "name":
                    path = f"{_called(name, number, entry)}.{inner.name}"
                    yield from _paths(path, getattr(entry, inner.name))
        else:
            yield f"{name}[{number}]", entry


def _called(name: str, number: int, entry: Any) -> str:
    """A dataclass in a tuple, by its name if it has one: "stages.recover", or "nodes[2]"."""
    return f"{name}.{entry.name}" if hasattr(entry, "name") else f"{name}[{number}]"


def _changed(name: str, value: Any, knobs: Mapping[str, Any]) -> Any:
    if not isinstance(value, tuple):
        return knobs.get(name, value)
    entries: list[Any] = []
    for number, entry in enumerate(value):
        if is_dataclass(entry) and not isinstance(entry, type):
            called = _called(name, number, entry)
            changes = {
                inner.name: _changed(f"{called}.{inner.name}", getattr(entry, inner.name), knobs)
                for inner in fields(entry)
            }
            entries.append(replace(entry, **changes))
        else:
            entries.append(knobs.get(f"{name}[{number}]", entry))
    return tuple(entries)

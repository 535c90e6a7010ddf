"""Check what is read from a run folder: it may be damaged, another version's or a stranger's."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from math import inf
from pathlib import Path
from reprlib import repr  # a few levels and characters
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from objectives.errors import first_line, types_of, wanted
from orchestrator.errors import RunError

Record = TypeVar("Record")
REMEDY = "; restore it from a copy"  # the end of each error message
# Weights of a trial may be gone, deleted to make room, but not the files that say what it is.
_NEEDED = ("architecture.json", "result.json")
_HUGE = 1e100  # what JSON may say and no number of a run is; to compute with it overflows


def read_json(file: Path) -> Any:
    """Read a JSON file. Raises RunError if it is damaged, and FileNotFoundError."""
    if file.exists() and not file.is_file():  # a stranger's pipe would be read for ever
        raise RunError(f"'{file}' is not a file{REMEDY}")
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"'{file}' is damaged ({first_line(error)}){REMEDY}") from error


def as_type(hint: Any, value: Any, where: str) -> Any:
    """Convert a value to this type, lists to tuples. Raises RunError, which names `where`."""
    try:
        value = _frozen(value)
        right = wanted(hint, value)
    except OverflowError:
        right = "below 1e100"
    except RecursionError:
        right = "less nested"
    if right is not None:
        raise RunError(f"{where} is {repr(value)}; it must be {right}{REMEDY}")
    return value


def as_record(kind: type[Record], value: Any, where: str) -> Record:
    """Make a dataclass of the keys that it has, ignoring others. Raises RunError as `as_type`."""
    document = value if isinstance(value, dict) else as_type(Mapping[str, Any], value, where)
    types, values = types_of(kind), {}
    for field in fields(kind):  # type: ignore[arg-type]  # a class of a dataclass
        name = field.name
        if name in document:
            values[name] = as_type(types[name], document[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise RunError(
                f"{where} has no {name}: it is damaged, or another version of maskfront made it"
                f"{REMEDY}"
            )
    return kind(**values)


def _frozen(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    if isinstance(value, int | float) and _HUGE < abs(value) < inf:
        raise OverflowError
    return value


def damages(folder: Path) -> list[str]:
    """Lines on a trial's damaged files, by path in `folder`, and on needed ones that are gone."""
    gone = [name for name in _NEEDED if folder.is_dir() and not (folder / name).exists()]
    files = [*folder.glob("*"), *folder.glob("*/**/*")]  # a model may be a link
    files = [file for file in files if not file.name.startswith("._")]  # macOS adds them to copies
    return [f"{name} is gone" for name in gone] + damaged_files(folder, files)


def damaged_files(folder: Path, files: Iterable[Path]) -> list[str]:
    """Lines on the damaged files among `files`. Raises RunError for one that may not be read."""
    lines = []
    for file in sorted(files):
        try:
            if file.suffix == ".json" and file.is_file():
                json.loads(file.read_bytes())
            elif file.suffix == ".safetensors" and file.is_file():
                file.open("rb").close()  # safetensors calls a file that may not be read missing
                with safe_open(file, framework="np"):
                    pass
        except (ValueError, RecursionError) as error:
            lines.append(f"{file.relative_to(folder).as_posix()} is not JSON ({error})")
        except PermissionError as error:
            raise RunError(f"'{file}' may not be read by this account") from error
        except SafetensorError as error:
            reason = f"is cut short or not safetensors ({file.stat().st_size:,} bytes: {error})"
            lines.append(f"{file.relative_to(folder).as_posix()} {reason}")
    return lines

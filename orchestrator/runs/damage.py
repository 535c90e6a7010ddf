"""Damage of a trial's files: safetensors that do not open, JSON that does not parse. A file that is
gone is no damage, since weights may be deleted to make room, but for the two small ones that say
what the trial is."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from orchestrator.runs.run_folder import RunFolder

_NEEDED = ("architecture.json", "result.json")


def damaged_trials(run: Path, numbers: Iterable[int]) -> dict[int, list[str]]:
    """A line on each damaged file of these trials."""
    lines_of = {number: damages(RunFolder(run).trial(number)) for number in numbers}
    return {number: lines for number, lines in lines_of.items() if lines}


def damages(folder: Path) -> list[str]:
    """A line on each damaged file of a trial, by its path in `folder`, and on what one that is
    there lacks."""
    gone = [name for name in _NEEDED if folder.is_dir() and not (folder / name).exists()]
    files = [*folder.glob("*"), *folder.glob("*/**/*")]  # a model may be a link
    return [f"{name} is gone" for name in gone] + damaged_files(folder, files)


def damaged_files(folder: Path, files: Iterable[Path]) -> list[str]:
    """The lines on files alone."""
    checked = [file for file in sorted(files) if file.suffix in _CHECKS and file.is_file()]
    lines = [(file.relative_to(folder).as_posix(), _CHECKS[file.suffix](file)) for file in checked]
    return [f"{name} {line}" for name, line in lines if line is not None]


def _json(file: Path) -> str | None:
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})"
    return None


def _safetensors(file: Path) -> str | None:
    try:
        with safe_open(file, framework="np"):
            return None
    except SafetensorError as error:
        return f"is cut short or not safetensors ({file.stat().st_size:,} bytes: {error})"


_CHECKS: Mapping[str, Callable[[Path], str | None]] = {".json": _json, ".safetensors": _safetensors}

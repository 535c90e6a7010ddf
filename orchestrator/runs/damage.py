"""What is damaged of a trial's files: cut short by a full disk or a lost machine, or overwritten. A
file that is gone is no damage, since weights may be deleted to make room, but for the two small
ones that say what the trial is."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from orchestrator.runs.records import TrialRecord
from orchestrator.runs.run_folder import RunFolder

_NEEDED = ("architecture.json", "result.json")
_PNG_END = b"IEND\xaeB`\x82"


def damaged_trials(run: Path, trials: Iterable[TrialRecord]) -> dict[int, list[str]]:
    """Of each finished trial with damage a line on each file: its own files and its weights."""
    finished = [trial.number for trial in trials if trial.result is not None]
    found = {number: damages(RunFolder(run).trial(number)) for number in finished}
    return {number: lines for number, lines in found.items() if lines}


def damages(folder: Path, files: Iterable[Path] | None = None) -> list[str]:
    """A line on each of these files that is damaged, which names it by its path in `folder`, by
    default on all of a trial's; and on what a folder that is there lacks."""
    if files is None:
        files = [*folder.glob("*"), *folder.glob("*/**/*.safetensors")]
    gone = [name for name in _NEEDED if folder.is_dir() and not (folder / name).exists()]
    return [f"{name} is gone" for name in gone] + damaged_files(folder, files)


def damaged_files(folder: Path, files: Iterable[Path]) -> list[str]:
    """The lines on files alone."""
    lines = []
    for file in sorted(files):
        check = _CHECKS.get(file.suffix)
        problem = check(file) if check and file.is_file() else None
        if problem:
            lines.append(f"{file.relative_to(folder).as_posix()} {problem}")
    return lines


def _json(file: Path) -> str | None:
    try:
        json.loads(file.read_bytes())
    except ValueError as error:
        return f"is not JSON ({error})"
    return None


def _csv(file: Path) -> str | None:
    return None if file.read_bytes().endswith(b"\n") else "ends in the middle of a line"


def _png(file: Path) -> str | None:
    return None if file.read_bytes().endswith(_PNG_END) else "is not a complete picture"


def _safetensors(file: Path) -> str | None:
    try:
        with safe_open(file, framework="np"):
            return None
    except SafetensorError as error:
        return f"is cut short or not safetensors ({file.stat().st_size:,} bytes: {error})"


_CHECKS: Mapping[str, Callable[[Path], str | None]] = {
    ".json": _json,
    ".csv": _csv,
    ".png": _png,
    ".safetensors": _safetensors,
}

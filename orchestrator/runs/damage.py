"""Damage of a trial's files: safetensors that do not open, JSON that does not parse. Weights may be
gone, deleted to make room, but not the two small files that say what the trial is."""

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder

_NEEDED = ("architecture.json", "result.json")


def damaged_trials(run: Path, numbers: Iterable[int]) -> dict[int, list[str]]:
    """Lines on the damaged files of these trials, by number."""
    lines_of = {number: damages(RunFolder(run).trial(number)) for number in numbers}
    return {number: lines for number, lines in lines_of.items() if lines}


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

"""Read the splits of a task's data: files, a folder, a data set of the hub, or a function's."""

import re
from collections.abc import Mapping
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError, DatasetsError
from datasets.table import CastError

from objectives.errors import UserError, causes, first_line
from objectives.text.task import Task
from objectives.text.text_files import DELIMITERS, quotes_of, without_views

_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_FILES = {*DELIMITERS, ".arrow", ".bz2", ".gz", ".txt", ".xls", ".xlsx", ".zip"}
"""Suffixes of data files: a name with one is a file, not a data set on the hub."""
_LONGEST_REASON = 200  # characters of a library's message that are quoted


def read(task: Task, cache: str) -> Mapping[str, Dataset]:
    """Load every split of a task's data; Arrow files of local data are written to `cache`."""
    if callable(task.data):
        try:
            data = task.data()
        except Exception as error:
            raise task.refusal(f"data() raises {type(error).__name__}: {error}") from error
        if not isinstance(data, Dataset | DatasetDict):
            raise task.refusal(
                f"data() returned {type(data).__name__}, not datasets.Dataset or DatasetDict"
            )
        return _by_split(task, data, cache)
    if isinstance(task.data, Mapping):
        labelled = {task.split, task.heldout_split} if task.labelled else set()
        return {
            split: file.read(task.columns, cache, task.label_columns * (split in labelled))
            for split, file in task.data.items()
        }
    folder = Path(task.data)
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    local = folder.is_dir()
    if not local:
        _check_name(task, task.data)
    try:
        if saved:
            return _by_split(task, _from_disk(task, task.data), cache)
        for file in folder.rglob("*.[ct]sv") if local else ():
            if quotes_of(file, DELIMITERS[file.suffix], "utf-8", task.label_columns) != '"':
                raise UserError(f"quotes are part of '{file}'; name it in Task.from_files")
        data = load_dataset(task.data, task.subset, cache_dir=cache if local else None)
        return _by_split(task, data, cache)
    except (DatasetsError, OSError, ValueError) as error:
        where = "" if local else "there is no such folder, and from the hub: "
        raise task.refusal(
            f"data set '{task.data}' could not be loaded ({where}{_reason(error)})"
        ) from error


def _from_disk(task: Task, folder: str) -> Dataset | DatasetDict:
    if task.subset is not None:
        raise task.refusal(f"a folder of save_to_disk has no subset '{task.subset}'; leave it out")
    return load_from_disk(folder)


def _check_name(task: Task, name: str) -> None:
    """Raise UserError for what is no folder and no name on the hub, which refuses it slowly."""
    if Path(name).is_file():
        raise task.refusal(
            f"data '{name}' is a file; files are read by Task.from_files({name!r}, ...)"
        )
    if not _HUB_NAME.fullmatch(name) or Path(name).suffix.lower() in _FILES:
        where = "" if Path(name).is_absolute() else f" in {Path.cwd()}"
        raise task.refusal(
            f"there is no file or folder '{name}'{where}; correct data, or name a data set of the "
            "hub as OWNER/NAME"
        )


def _reason(error: Exception) -> str:
    if not isinstance(error, DatasetGenerationError):
        return first_line(error)
    cause = list(causes(error))[-1]
    if isinstance(cause, CastError):
        return f"its files differ in their columns: {cause.details()}"
    return " ".join(str(cause).split())[:_LONGEST_REASON] or first_line(cause)


def _by_split(task: Task, data: Dataset | DatasetDict, cache: str) -> Mapping[str, Dataset]:
    """Splits of the data by name; a single data set is the split to draw from."""
    splits = data if isinstance(data, DatasetDict) else {task.split: data}
    # A format for training, which a saved folder has, too, would turn values to tensors.
    return {name: without_views(rows.with_format(None), cache) for name, rows in splits.items()}

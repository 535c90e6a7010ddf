"""What benchmarks share: options, rows that are written as soon as they are measured, the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from objectives.cache import atomic_write_text
from objectives.device import quiet_libraries

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"


def parser_of(
    about: str | None,
    *,
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = (),
    cache: bool = False,
    device: bool = False,
) -> argparse.ArgumentParser:
    """A parser with the options that a benchmark shares with others.

    Args:
        about: The docstring of the benchmark.
        tasks: Choices of `--task`, the first one by default; with them comes `--glue`.
        seeds: The default of `--seeds`.
        cache: Whether `--cache` is required.
        device: Whether there is `--device`.

    Returns:
        The parser; `--threads` and `--out` are always there.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    if tasks:
        parser.add_argument("--task", default=tasks[0], choices=tasks)
        parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    if seeds:
        parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    if cache:
        parser.add_argument("--cache", type=Path, required=True, help="folder for the teachers")
    if device:
        parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with libraries quiet, threads set and folders made."""
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(options.threads)
    for name in ("out", "cache"):
        if folder := getattr(options, name, None):
            folder.mkdir(parents=True, exist_ok=True)
    return options


@contextmanager
def sharing_cache(shared: Path, run: Path) -> Iterator[None]:
    """Give a run folder what a cache holds, by hard links, and the cache what the run adds: a run
    refuses a cache that is a link to elsewhere."""

    def link(source: str, target: str) -> None:
        if not os.path.exists(target):
            os.link(source, target)

    for source, target in ((shared, run / "cache"), (run / "cache", shared)):
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link, dirs_exist_ok=True)
        if source is shared:
            yield


def write_json(file: Path, document: Row) -> None:
    """Replace the file at once, so that a kill leaves the old one or the new one."""
    atomic_write_text(file, json.dumps(document, indent=1) + "\n")


class Rows:
    """The rows of a JSON file; a benchmark that is started again goes on from them."""

    def __init__(self, file: Path, device: str = "cpu", **about: Any):
        """`about` is written beside the rows, with the machine and the version of torch; each row
        that another device than the CPU gave bears its name."""
        self.file = file
        self.of_row = {} if device == "cpu" else {"device": device}
        self.about = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
            f"{torch.get_num_threads()} threads",
            "torch": torch.__version__,
            **about,
        }
        self.rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []

    def has(self, key: Row) -> bool:
        """Whether a row with these values is there already."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, *rows: Row) -> None:
        """Print rows that belong together, and write them at once."""
        self.rows += [{**row, **self.of_row} for row in rows]
        write_json(self.file, {**self.about, "rows": self.rows})
        for row in rows:
            Console().print(row)


def groups_of(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values of `keys`, in the order in which these come first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key, "") for key in keys), []).append(row)
    return groups


def print_table(title: str, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Print cells below their columns."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(*map(str, line))
    Console(width=None if Console().is_terminal else 160).print(table)


def print_means(
    title: str, rows: Iterable[Row], keys: Sequence[str], values: dict[str, str]
) -> None:
    """Print a line for each group of rows: its number of seeds, and means.

    Args:
        title: Above the table.
        rows: All rows.
        keys: The names by which rows are grouped.
        values: The names of which means are printed, each with its format.
    """
    lines = [
        [*key, len(group), *(f"{_mean(group, name):{form}}" for name, form in values.items())]
        for key, group in groups_of(rows, keys).items()
    ]
    print_table(title, [*keys, "seeds", *values], lines)


def _mean(group: Sequence[Row], name: str) -> float:
    return statistics.fmean(row[name] for row in group)

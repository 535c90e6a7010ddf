"""Options, rows that are written as soon as they are measured, tables, and the runner."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from objectives.cache import atomic_write_text
from objectives.device import quiet_libraries

Row = dict[str, Any]
Prepared = TypeVar("Prepared")

RESULTS = Path(__file__).parent / "results"


def parser_of(
    about: str | None,
    *,
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = (),
    cache: bool = False,
    device: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser with `--out`, `--threads` and the options that are asked for.

    The first of `tasks` is the default of `--task`; with them comes `--glue`.
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


def parsed(
    parser: argparse.ArgumentParser, words: Sequence[str] | None = None
) -> argparse.Namespace:
    """Return the options, with libraries quiet, threads set and folders made."""
    options = parser.parse_args(words)
    quiet_libraries()
    torch.set_num_threads(options.threads)
    for name in ("out", "cache"):
        if folder := getattr(options, name, None):
            folder.mkdir(parents=True, exist_ok=True)
            setattr(options, name, folder.absolute())  # a benchmark may change the folder
    return options


@contextmanager
def sharing_cache(shared: Path, run: Path) -> Iterator[None]:
    """Give a run folder what a cache holds, and the cache what the run adds, by hard links."""
    # A run refuses a cache that is a link to elsewhere.

    def link(source: str, target: str) -> None:
        if not os.path.exists(target):
            os.link(source, target)

    for source, target in ((shared, run / "cache"), (run / "cache", shared)):
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link, dirs_exist_ok=True)
        if source is shared:
            yield


def write_json(file: Path, document: Row) -> None:
    """Replace the file at once: a kill leaves the old one or the new one."""
    atomic_write_text(file, json.dumps(document, indent=1) + "\n")


class Rows:
    """Rows of a JSON file; a benchmark that is started again goes on from them."""

    def __init__(self, file: Path, device: str = "cpu", **about: Any):
        """Read the file. `about`, the machine and the version of torch stand beside the rows."""
        self.file = file
        # A row that another device than the CPU gave bears its name.
        self.of_row = {} if device == "cpu" else {"device": device}
        self.about = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
            f"{torch.get_num_threads()} threads",
            "torch": torch.__version__,
            **about,
        }
        self.rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []

    def has(self, key: Row) -> bool:
        """Say whether a row has these values."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, *rows: Row) -> None:
        """Print rows that belong together, and write them at once."""
        self.rows += [{**row, **self.of_row} for row in rows]
        write_json(self.file, {**self.about, "rows": self.rows})
        for row in rows:
            Console().print(row)


def groups_of(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by their values of `keys`, in the order in which these come first."""
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
    title: str,
    rows: Iterable[Row],
    keys: Sequence[str],
    values: Mapping[str, str],
    average: Callable[[Iterable[float]], float] = fmean,
) -> None:
    """Print, for each group of rows by `keys`, its size and the means of `values`, by format."""
    lines = [
        [
            *key,
            len(group),
            *(f"{average(row[name] for row in group):{form}}" for name, form in values.items()),
        ]
        for key, group in groups_of(rows, keys).items()
    ]
    print_table(title, [*keys, "seeds", *values], lines)


class Benchmark(Generic[Prepared]):
    """A question that rows answer: one or more for each seed and each cell of a grid.

    The docstring of a subclass is the question. `python -m benchmarks.measure NAME` runs it.
    """

    name: ClassVar[str]
    """Rows go to results/NAME.json."""
    tasks: ClassVar[Sequence[str]] = ("tweets", "sst2", "cola")
    seeds: ClassVar[Sequence[int]] = (0, 1, 2)
    cache: ClassVar[bool] = True
    threads: ClassVar[int | None] = 1
    """Default of `--threads`; None: what torch takes."""
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Values of each further field of a row's key: options of several words, such as --ratios."""
    flags: ClassVar[Mapping[str, str]] = {}
    """Options without a value, with their help."""
    average: ClassVar[Callable[[Iterable[float]], float]] = staticmethod(fmean)
    about: ClassVar[Mapping[str, Any]] = {}
    """Written beside the rows."""
    prepared_by: ClassVar[Sequence[str]] = ()
    """Fields of the key on which `prepare` depends beside the task."""
    groups: ClassVar[Sequence[str]]
    means: ClassVar[Mapping[str, str]]
    """What the table shows: the fields by which rows are grouped, and means with their formats."""

    measured: Rows
    scratch: Path
    """Folder that is deleted after the run."""

    def __init__(self, asked: argparse.Namespace):
        """Take the options of `parser`."""
        self.asked = asked

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options of this benchmark."""
        parser = parser_of(
            cls.__doc__, tasks=cls.tasks, seeds=cls.seeds, cache=cls.cache, device=True
        )
        if cls.threads:
            parser.set_defaults(threads=cls.threads)
        for name, values in cls.grid.items():
            kind = type(values[0])
            parser.add_argument(
                option_of(name),
                dest=name,
                nargs="+",
                type=kind,
                default=list(values),
                choices=values if kind is str else None,
            )
        for name, about in cls.flags.items():
            parser.add_argument(f"--{name}", action="store_true", help=about)
        return parser

    def run(self) -> None:
        """Measure what is missing, print the table."""
        # An earlier start left rows; this one goes on from them.
        self.measured = Rows(self.asked.out / f"{self.name}.json", self.asked.device, **self.about)
        known: dict[tuple[Any, ...], Prepared] = {}
        with TemporaryDirectory() as scratch:
            self.scratch = Path(scratch)
            for key in self.keys():
                wanted = tuple(key[name] for name in self.prepared_by)
                if wanted not in known:
                    known[wanted] = self.prepare(key)
                key = self.key(key, known[wanted])
                if not self.measured.has(key):
                    rows = self.rows(key, known[wanted])
                    self.measured.add(*({**key, **row} for row in rows))
        self.show(self.measured.rows)

    def keys(self) -> Iterable[Row]:
        """Yield the key of each cell, seed by seed."""
        common = {"task": self.asked.task} if self.tasks else {}
        names = ["seed"] * bool(self.seeds) + list(self.grid)
        grid = [getattr(self.asked, "seeds" if name == "seed" else name) for name in names]
        for values in product(*grid):
            yield {**common, **dict(zip(names, values, strict=True))}

    def prepare(self, key: Row) -> Prepared:
        """Make what many rows share, such as a fine-tuned teacher; its time counts nowhere."""
        raise NotImplementedError

    def key(self, key: Row, prepared: Prepared) -> Row:
        """Return the fields by which a row is found again."""
        return key

    def rows(self, key: Row, prepared: Prepared) -> Iterable[Row]:
        """Measure: what each row has beside the key."""
        raise NotImplementedError

    def show(self, rows: list[Row]) -> None:
        """Print the means over the seeds."""
        title = (self.__doc__ or self.name).splitlines()[0]
        print_means(title, rows, self.groups, self.means, self.average)


def option_of(name: str) -> str:
    """Return the option of a field: "ratio" is --ratios, "strategy" --strategies."""
    word = name.replace("_", "-")
    if word.endswith("y"):
        return f"--{word[:-1]}ies"
    plural = "es" if word.endswith("ch") else "s"
    return f"--{word}" + plural * (not word.endswith("s"))

"""What the verbs share: how they end, and the table of a front."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from orchestrator.errors import RunError
from orchestrator.terminal import say_to_stderr, visible

if TYPE_CHECKING:
    from orchestrator.runs.records import Measured, RunRecord


@contextmanager
def mendable() -> Iterator[None]:
    """Turn a UserError, a mistake in a study, into a RunError, which a command prints as a line."""
    from objectives.errors import UserError

    try:
        yield
    except UserError as error:
        raise RunError(str(error)) from error


@contextmanager
def interrupted(remark: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a command cleanly."""

    def stop(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        say_to_stderr(f"interrupted; {remark}")
        raise typer.Exit(130) from None


def front_table(record: RunRecord) -> Table:
    """The models of the front by rising cost, and the unpruned one."""
    unpruned = record.unpruned
    title = f"{record.name}: {record.metric_name} against {unpruned.cost_name}"
    table = Table(title=Text(visible(title)))
    ratio = f"{unpruned.cost_name} ratio"
    for column in ("trial", record.metric_name, "held out", ratio, *unpruned.sizes):
        table.add_column(Text(visible(column)), justify="right")
    for trial in record.front:
        table.add_row(str(trial.number), *_cells(trial.result))
    table.add_section()
    table.add_row(unpruned.label, *_cells(unpruned))
    return table


def next_commands(record: RunRecord) -> list[str]:
    """Where the report of a finished run is, and what to do next; to export, the best model of at
    most half the cost, or the cheapest."""
    from orchestrator.runs.run_folder import RunFolder

    half = [trial for trial in record.front if trial.result.ratio <= 0.5]
    folder = shlex.quote(str(record.folder))
    return [
        f"report     {RunFolder(record.folder).report}",
        f"dashboard  maskfront dashboard {folder}",
        *(
            f"export     maskfront export {folder} --trial {best.number} --out my-model"
            for best in half[-1:] or record.front[:1]
        ),
    ]


def _cells(model: Measured) -> list[str]:
    from orchestrator.runs.records import size_text

    numbers = (f"{model.metric:.4f}", f"{model.heldout_metric:.4f}", f"{model.ratio:.3f}")
    return [*numbers, *map(size_text, model.sizes.values())]

"""Endings that the verbs share, and their view of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from orchestrator.errors import RunError
from orchestrator.signals import interruptible
from orchestrator.terminal import for_shell, say, say_to_stderr

if TYPE_CHECKING:
    from orchestrator.runs.records import RunRecord


@contextmanager
def interrupted(remark: str) -> Iterator[None]:
    """End a command cleanly at Ctrl-C and SIGTERM."""
    try:
        with interruptible(remark):
            yield
    except KeyboardInterrupt:
        say_to_stderr(f"interrupted; {remark}")
        raise typer.Exit(130) from None


def show_front(run: RunRecord, console: Console) -> None:
    """The front as a table; below it which model to take, how sure that is, and what to expect of
    it on other rows."""
    from orchestrator.command.run import front_table
    from reports.pareto import pareto_view
    from reports.recommended import answer, certainty, expected_of, recommended

    console.print(front_table(run))
    for remark in run.remarks:
        say(console, remark)
    view = pareto_view(run)
    say(console, f"{answer(view)} {certainty(view)}".strip())
    pick = expected_of(view)
    if pick is not None and pick.trial == recommended(run):
        say(console, f"expected {run.metric_name} on other rows: {pick.expected:.4f}")


def show_runs(runs: Sequence[Path], console: Console, *, as_json: bool) -> None:
    """Show the runs of a folder, one a line with its recommended trial, or as one JSON object."""
    from orchestrator.runs.records import read_run
    from orchestrator.status import run_status
    from reports.recommended import recommended

    documents: dict[str, dict[str, Any]] = {}
    width = max(len(for_shell(run)) for run in runs)
    for run in runs:
        try:
            state = run_status(run)
            best = recommended(read_run(run)) if state.front else None
        except RunError as error:  # one that is damaged hides no other
            documents[str(run)], line = {"error": str(error)}, str(error)
        else:
            documents[str(run)] = {**state.document(), "best": best and best.number}
            line = state.line(best)
        if not as_json:
            say(console, f"{for_shell(run):{width}}  {line}")
    if as_json:
        typer.echo(json.dumps(documents, indent=2))


def show_end(run: RunRecord, console: Console, study_file: Path | None = None) -> None:
    """Show the end of a launch: the front, and next commands."""
    show_front(run, console)
    for line in next_commands(run, study_file):
        say(console, line)


def next_commands(record: RunRecord, study_file: Path | None = None) -> list[str]:
    """Where the report of a finished run is, and what to do next; to export, the recommended
    model."""
    from orchestrator.runs.run_folder import RunFolder
    from reports.recommended import recommended

    best = recommended(record)
    folder = for_shell(record.folder)
    scored = "" if study_file is None else f" --study-file {for_shell(study_file)}"
    return [
        f"report     {RunFolder(record.folder).report}",
        f"dashboard  maskfront dashboard {folder}",
        *(
            (
                f"bench      maskfront bench {folder}{scored}",
                f"export     maskfront export {folder} --trial {best.number} --out my-model",
            )
            if best
            else ()
        ),
    ]

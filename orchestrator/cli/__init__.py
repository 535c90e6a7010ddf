"""The command `maskfront`: each of its verbs is also a Python call.

The composition root: the one package of orchestrator/ that may import reports and load a study
file. What a verb needs is imported when it runs, so that help and fronts answer without loading
torch.
"""

from __future__ import annotations

import sys

import typer

from orchestrator.cli.results import bench, dashboard, export, front, report
from orchestrator.cli.studies import run, serve_storage, status, work
from orchestrator.cli.terminal import say_to_stderr
from orchestrator.errors import RunError

app = typer.Typer(
    name="maskfront",
    help="Smaller BERT classifiers: studies, fronts of accuracy against cost, models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (run, work, status, serve_storage, front, report, dashboard, export, bench):
    app.command()(verb)


def main() -> None:
    """Entry point: an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except RunError as error:
        say_to_stderr(str(error))
        sys.exit(2)
    except OSError as error:
        say_to_stderr(f"'{error.filename}' could not be written or read ({error.strerror})")
        sys.exit(2)

"""The command `maskfront`: each of its verbs is also a Python call.

The composition root: the one file of orchestrator/ that may import reports and load a study file.
What a verb needs is imported when it runs, so that help and fronts answer without loading torch.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.errors import RunError

if TYPE_CHECKING:
    from orchestrator.records import Measured, RunRecord

app = typer.Typer(
    name="maskfront",
    help="Smaller BERT classifiers: studies, fronts of accuracy against cost, models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/quickstart.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Storage = Annotated[
    str | None,
    typer.Option(
        help="sqlite:///FILE, postgresql://USER@HOST/DATABASE, mysql://..., grpc://HOST:PORT or "
        "journal:///FILE; the run folder's own by default. Its password may stand in the "
        "environment: MASKFRONT_STORAGE_PASSWORD."
    ),
]


class Backend(StrEnum):
    """What starts workers."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


@app.command()
def run(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="A file that ends in study = Study(...).")
    ],
    name: Annotated[
        str, typer.Option("--study", help="Which study of the file, if it has several.")
    ] = "study",
    trials: Annotated[
        int | None, typer.Option(help="Finished trials wanted; the study's own by default.")
    ] = None,
    population: Annotated[
        int | None, typer.Option(help="Trials that train together; the study's own by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME by default.")] = None,
    device: Device = "auto",
    storage: Storage = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, or tasks of a cluster; one a GPU, else 1, by default."),
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="What starts the workers: this machine, or a cluster.")
    ] = Backend.loky,
    cluster: Annotated[
        str | None, typer.Option(help="Address of the cluster, such as tcp://SCHEDULER:8786.")
    ] = None,
) -> None:
    """Launch a study, or continue it up to its number of trials."""
    from orchestrator.fleet import default_workers, launch_workers
    from orchestrator.loop import launch
    from orchestrator.study_file import load_study
    from reports.page import write_report

    console = Console()
    with _mendable(), _interrupted("finished trials are kept, launch again to go on"):
        if workers is None:
            workers = default_workers(device)
        launches = (
            launch
            if workers == 1 and backend is Backend.loky
            else partial(launch_workers, workers=workers, backend=backend.value, cluster=cluster)
        )
        finished = launches(
            load_study(study, name),
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
            callbacks=[lambda record: _write_report(record, None)],
            console=console,
        )
    report = write_report(finished, _report_path(finished))
    folder = shlex.quote(str(finished.folder))
    console.print(_front_table(finished))
    best = finished.front[-1].number if finished.front else "N"
    for line in (
        f"report     {report}",
        f"dashboard  maskfront dashboard {folder}",
        f"export     maskfront export {folder} --trial {best} --out my-model",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def work(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="The file that the study was run from.")
    ],
    name: Annotated[
        str, typer.Option("--study", help="Which study of the file, if it has several.")
    ] = "study",
    storage: Storage = None,
    trials: Annotated[
        int | None, typer.Option(help="Finished trials wanted; the study's own by default.")
    ] = None,
    population: Annotated[
        int | None, typer.Option(help="Trials that train together; the study's own by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's run folder, shared; runs/NAME by default.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Help a study that `run` has begun, from this or another machine, until it is finished."""
    from orchestrator.loop import work as join
    from orchestrator.study_file import load_study

    with _mendable(), _interrupted("other workers, or the next launch, take what is left"):
        join(
            load_study(study, name),
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
        )


@app.command()
def status(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run.", show_default=False)
    ] = None,
    storage: Storage = None,
    name: Annotated[
        str | None, typer.Option("--study", help="Its name in the storage, if that has several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Show how a study stands: trials, rate, time left, workers, front, failures."""
    from orchestrator.status import run_status, storage_status

    if (run is None) == (storage is None):
        raise RunError("name a run folder, or a storage with --storage: one of the two")
    if run is not None:
        found = run_status(run)
    else:
        assert storage is not None
        found = storage_status(storage, name)
    if as_json:
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    else:
        for line in found.lines():
            Console().print(line, markup=False, highlight=False, soft_wrap=True)


@app.command(name="serve-storage")
def serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port to serve at.")] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to serve at; any other than this lets everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.proxy import serve_storage as serve

    with _interrupted("the storage is served no longer"):
        serve(storage, port, _say_at_once, host)


@app.command()
def front(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Show the Pareto front of a run."""
    from orchestrator.records import front_document, read_run

    record = read_run(run)
    if as_json:
        sys.stdout.write(json.dumps(front_document(record), indent=2) + "\n")
    else:
        Console().print(_front_table(record))


@app.command()
def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; RUN/report.html by default. A name in .svg or .png: the front."
        ),
    ] = None,
) -> None:
    """Write the HTML page of a run, or a picture of its front."""
    from orchestrator.records import read_run

    sys.stdout.write(f"{_write_report(read_run(run), out)}\n")


@app.command()
def dashboard(
    run: Run,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8080,
) -> None:
    """Browse a run in optuna-dashboard, until Ctrl-C."""
    from orchestrator.dashboard import serve

    serve(run, port, _say_at_once)


@app.command()
def export(
    run: Run,
    trial: Annotated[int, typer.Option(help="Number of a finished trial.")],
    out: Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")],
) -> None:
    """Copy the cut model of a trial, with tokenizer and labels, to a folder."""
    from orchestrator.records import read_run
    from reports.export import export as export_model

    sys.stdout.write(f"{export_model(read_run(run), trial, out)}\n")


def main() -> None:
    """Entry point: an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except RunError as error:
        _say_to_stderr(str(error))
        sys.exit(2)
    except OSError as error:
        _say_to_stderr(f"'{error.filename}' could not be written or read ({error.strerror})")
        sys.exit(2)


@contextmanager
def _mendable() -> Iterator[None]:
    """A mistake in a study is one line, as one in a run is."""
    from objectives.errors import UserError

    try:
        yield
    except UserError as error:
        raise RunError(str(error)) from error


@contextmanager
def _interrupted(remark: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a command cleanly."""

    def stop(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        _say_to_stderr(f"interrupted; {remark}")
        raise typer.Exit(130) from None


def _say_at_once(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_to_stderr(line: str) -> None:
    Console(stderr=True).print(f"maskfront: {line}", markup=False, highlight=False, soft_wrap=True)


def _write_report(record: RunRecord, out: Path | None) -> Path:
    from reports.page import write_report
    from reports.picture import PICTURES, front_image

    target = _report_path(record) if out is None else out
    if target.suffix in PICTURES:
        return front_image(record, target)
    return write_report(record, target)


def _report_path(record: RunRecord) -> Path:
    from orchestrator.run_folder import RunFolder

    return RunFolder(record.folder).report


def _front_table(record: RunRecord) -> Table:
    unpruned = record.unpruned
    table = Table(title=f"{record.name}: {record.metric_name} against {unpruned.cost_name}")
    ratio = f"{unpruned.cost_name} ratio"
    for column in ("trial", record.metric_name, "held out", ratio, *unpruned.sizes):
        table.add_column(column, justify="right")
    for trial in record.front:
        assert trial.result is not None
        table.add_row(str(trial.number), *_cells(trial.result))
    table.add_section()
    table.add_row(unpruned.label, *_cells(unpruned))
    return table


def _cells(model: Measured) -> list[str]:
    from orchestrator.records import size_text

    numbers = (f"{model.metric:.4f}", f"{model.heldout_metric:.4f}", f"{model.ratio:.3f}")
    return [*numbers, *map(size_text, model.sizes.values())]


if __name__ == "__main__":
    main()

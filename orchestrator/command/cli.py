"""The command `maskfront`: each of its verbs is also a Python call.

Of orchestrator/ only this package, `command/`, may import reports: it is the composition root. What
a verb needs is imported when it runs, so that help and fronts answer without loading torch.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from objectives.errors import MaskfrontError
from orchestrator.command.models import bench, cascade, compress, export, polish
from orchestrator.command.options import AsJson, Device, Name, Population, Run, Storage
from orchestrator.command.shared import flag, interrupted, show_end, show_front
from orchestrator.errors import RunError
from orchestrator.signals import unattended
from orchestrator.study_file import load_study
from orchestrator.terminal import say, say_to_stderr

app = typer.Typer(
    name="maskfront",
    help="Smaller BERT classifiers: studies, fronts of accuracy against cost, models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    context: typer.Context,
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="A Python file with study = Study(...).")
    ],
    name: Name = "study",
    trials: Annotated[
        int | None, typer.Option(help="Number of trials; by default the study's own.")
    ] = None,
    population: Population = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME by default.")] = None,
    device: Device = "auto",
    storage: Storage = None,
    artifacts: Annotated[
        str | None,
        typer.Option(help="s3://BUCKET to copy the files to, for dashboards on other machines."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes or cluster tasks; by default one per GPU, or 1."),
    ] = None,
    backend: Annotated[
        Literal["loky", "dask", "ray"],
        typer.Option(help="Where workers run: loky on this machine, dask or ray on a cluster."),
    ] = "loky",
    cluster: Annotated[
        str | None, typer.Option(help="Address of the cluster, such as tcp://SCHEDULER:8786.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Start no new trials after this many seconds.")
    ] = None,
) -> None:
    """Launch a study, or continue it up to its number of trials."""
    from orchestrator.command.launching import launch

    console = Console()
    with unattended(), interrupted("finished trials are kept, launch again to go on"):
        finished = launch(
            load_study(study, name),
            trials=trials,
            population=population,
            workers=workers,
            out=out,
            storage=storage,
            device=device,
            artifacts=artifacts,
            backend=backend,
            cluster=cluster,
            timeout=timeout,
            command=shlex.join(["maskfront", *context.obj]),
            console=console,
        )
        show_end(finished, console, study)


@app.command()
def work(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="The file that the study was run from.")
    ],
    name: Name = "study",
    storage: Storage = None,
    trials: Annotated[
        int | None, typer.Option(help="Number of trials; by default that of the launch.")
    ] = None,
    population: Population = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's run folder, shared; runs/NAME by default.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Add a worker to a study that `run` has started, from this or another machine."""
    from orchestrator.workers.loop import work as join

    with interrupted("other workers, or the next launch, take what is left"):
        join(
            load_study(study, name),
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
            console=Console(),
        )


@app.command()
def lengths(
    study: Annotated[Path, typer.Argument(metavar="STUDY.py", help="A file as `run` takes it.")],
    name: Name = "study",
    max_length: Annotated[
        list[int], typer.Option(help="Tokens at which texts are cut off; may be repeated.")
    ] = [512, 256, 128, 64],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Show what a study's teacher is worth at several lengths of its texts; nothing is searched."""
    from objectives.device import quiet_libraries
    from objectives.workbench.lengths import lengths as at_lengths

    quiet_libraries()
    read = load_study(study, name)
    heads = ("length", "truncation", "cut off", "tokens", "seconds", read.task.metric, "95%")
    typer.echo("{:>7} {:>10} {:>8} {:>7} {:>8} {:>10} {:>15}".format(*heads))
    for row in at_lengths(read.task, read.teacher, max_length, device=device):
        low, high = row.interval
        typer.echo(
            f"{row.max_length:7} {row.truncation:>10} {row.cut_off:8.1%} {row.tokens:7.1f} "
            f"{row.seconds:8.2f} {row.metric:10.4f} {low:7.4f}-{high:.4f}"
        )


@app.command()
def status(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Run folder; or give --storage.", show_default=False),
    ] = None,
    storage: Storage = None,
    name: Annotated[
        str | None, typer.Option("--study", help="Name of the study, if the storage holds several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a study stands: trials, rate, time left, workers, front, failures."""
    from orchestrator.status import run_status, storage_status

    if (run is None) == (storage is None):
        raise RunError("name either a run folder or a storage", "storage")
    if run is not None:
        found = run_status(run)
    else:
        assert storage is not None
        found = storage_status(storage, name)
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2))
    else:
        for line in found.lines():
            say(Console(), line)


@app.command(name="serve-storage")
def serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; all but the default let everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.storage.proxy import serve_storage as serve

    with interrupted("the storage is no longer served"):
        serve(storage, port, typer.echo, host)


@app.command()
def front(run: Run, as_json: AsJson = False) -> None:
    """Show the Pareto front of a run."""
    from orchestrator.runs.records import front_document, read_run
    from reports.pareto import pareto_view
    from reports.recommended import expected_of

    record = read_run(run)
    if as_json:
        one = expected_of(pareto_view(record))
        expected = one and {"trial": one.trial.number, "why": one.reasons, "metric": one.expected}
        typer.echo(json.dumps({**front_document(record), "expected": expected}, indent=2))
    else:
        show_front(record, Console())


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders; several are drawn on the same axes."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; for one run RUN/report.html by default. A name that ends in "
            ".svg, .png or .pdf draws only the front."
        ),
    ] = None,
) -> None:
    """Write the HTML page of a run, or of several on the same axes, or a picture of the front."""
    from orchestrator.runs.records import read_run
    from orchestrator.runs.run_folder import RunFolder
    from reports.page.page import write_report
    from reports.page.picture import front_image

    if out is None and len(runs) > 1:
        raise RunError("a page of several runs needs a file name", "out")
    target = RunFolder(runs[0]).report if out is None else out
    try:
        records = [read_run(run) for run in runs]
        write = write_report if target.suffix == ".html" else front_image
        typer.echo(write(records, target))
    except OSError as error:
        if error.filename != str(target):
            raise
        raise RunError(
            f"'{target}' could not be written ({error.strerror}); write it elsewhere", "out"
        ) from error


@app.command()
def dashboard(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="A run, a folder of runs, or a storage's URL.")
    ],
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 8080,
) -> None:
    """Browse a run, a folder of runs or a storage in optuna-dashboard, until Ctrl-C."""
    from orchestrator.dashboard.server import serve

    serve(source, port, typer.echo)


for verb in (export, cascade, polish, bench, compress):
    app.command()(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: an error that the user can mend is one line and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(given, obj=given)
    except MaskfrontError as error:
        say_to_stderr(error.naming(flag))
        sys.exit(2)
    except OSError as error:
        named = f"'{error.filename}' could not be written or read ({error.strerror})"
        say_to_stderr(str(error) if error.filename is None else named)
        sys.exit(2)


if __name__ == "__main__":
    main()

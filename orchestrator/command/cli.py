"""The command `maskfront`: each of its verbs is also a Python call.

The composition root: the one file of orchestrator/ that may import reports and load a study file.
What a verb needs is imported when it runs, so that help and fronts answer without loading torch.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from objectives.errors import MaskfrontError
from orchestrator.command.options import (
    AsJson,
    Device,
    Name,
    Population,
    Run,
    Runs,
    Storage,
    Trials,
)
from orchestrator.command.shared import (
    CommandConsole,
    in_flags,
    interrupted,
    show_end,
    show_front,
)
from orchestrator.errors import RunError
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
        Path, typer.Argument(metavar="STUDY.py", help="A file that ends in study = Study(...).")
    ],
    name: Name = "study",
    trials: Trials = None,
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
        typer.Option(help="Processes, or tasks of a cluster; by default one per GPU, else 1."),
    ] = None,
    backend: Annotated[
        Literal["loky", "dask", "ray"],
        typer.Option(help="What starts the workers: this machine, or a cluster."),
    ] = "loky",
    cluster: Annotated[
        str | None, typer.Option(help="Address of the cluster, such as tcp://SCHEDULER:8786.")
    ] = None,
) -> None:
    """Launch a study, or continue it up to its number of trials."""
    from orchestrator.launching import launch
    from orchestrator.study_file import load_study

    console = CommandConsole()
    with interrupted("finished trials are kept, launch again to go on"):
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
        int | None, typer.Option(help="Trials wanted; as many as the launch wants by default.")
    ] = None,
    population: Population = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's run folder, shared; runs/NAME by default.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Add a worker to a study that `run` has begun, on this or another machine, until it ends."""
    from orchestrator.study_file import load_study
    from orchestrator.workers.loop import work as join

    with interrupted("other workers, or the next launch, take what is left"):
        join(
            load_study(study, name),
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
            console=CommandConsole(),
        )


@app.command()
def status(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a run; or --storage.", show_default=False),
    ] = None,
    storage: Storage = None,
    name: Annotated[
        str | None,
        typer.Option("--study", help="Name of the study, if the storage holds several."),
    ] = None,
    as_json: AsJson = False,
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
        typer.echo(json.dumps(found.document(), indent=2))
    else:
        for line in found.lines():
            say(Console(), line)


@app.command(name="serve-storage")
def serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to serve at; any but the default lets everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.storage.proxy import serve_storage as serve

    with interrupted("the storage is served no longer"):
        serve(storage, port, typer.echo, host)


@app.command()
def front(
    run: Run,
    as_json: AsJson = False,
) -> None:
    """Show the Pareto front of a run."""
    from orchestrator.runs.records import front_document, read_run

    record = read_run(run)
    if as_json:
        typer.echo(json.dumps(front_document(record), indent=2))
    else:
        show_front(record, Console())


@app.command()
def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Name of the page, of one run RUN/report.html by default; a name that ends in "
            ".svg, .png or .pdf draws the front alone."
        ),
    ] = None,
) -> None:
    """Write the HTML page of a run, or of several on the same axes, or a picture of the front."""
    from orchestrator.runs.records import read_run
    from orchestrator.runs.run_folder import RunFolder
    from reports.page.page import write_report
    from reports.page.picture import front_image

    if out is None and len(runs) > 1:
        raise RunError("a page of several runs is none of theirs: name it with --out FILE.html")
    target = RunFolder(runs[0]).report if out is None else out
    try:
        records = [read_run(run) for run in runs]
        write = write_report if target.suffix == ".html" else front_image
        typer.echo(write(records, target))
    except OSError as error:
        if error.filename != str(target):
            raise
        raise RunError(
            f"'{target}' could not be written ({error.strerror}); write it elsewhere with --out"
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


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")],
    trial: Annotated[int | None, typer.Option(help="This finished trial.")] = None,
    max_ratio: Annotated[
        float | None, typer.Option(help="The best model of the front at most this large.")
    ] = None,
    min_metric: Annotated[
        float | None, typer.Option(help="The cheapest model of the front at least this good.")
    ] = None,
    knee: Annotated[
        bool, typer.Option("--knee", help="The model where the front bends most.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="An ONNX file too.")] = False,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="ONNX in int8 too, measured on the data of --study-file."),
    ] = False,
    int4: Annotated[
        bool,
        typer.Option("--int4", help="The same in 4 bits: smaller and slower than int8."),
    ] = False,
    study_file: Annotated[
        Path | None,
        typer.Option(metavar="STUDY.py", help="The file that the run was launched from."),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload the folder; a new REPO is private.")
    ] = None,
) -> None:
    """Write a model that transformers loads anywhere: chosen by trial, size, metric or knee."""
    from orchestrator.runs.records import read_run
    from reports.choice import choose

    record = read_run(run)
    number = choose(record, trial=trial, max_ratio=max_ratio, min_metric=min_metric, knee=knee)
    if (int8 or int4) != (study_file is not None):
        raise RunError(
            "--int8 or --int4 and --study-file go together: what few bits lose is measured on the "
            "study's own data, which a run folder does not hold"
        )

    from objectives.device import quiet_libraries  # what was refused above need not wait for torch
    from orchestrator.study_file import load_study_of
    from reports.exporting.export import export as export_model
    from reports.exporting.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    quiet_libraries()
    study = None if study_file is None else load_study_of(study_file, record.name)
    exported = export_model(
        record,
        number,
        out,
        onnx=onnx,
        int8=study if int8 else None,
        int4=study if int4 else None,
    )
    result = next(trial.result for trial in record.finished if trial.number == number)
    typer.echo(
        f"{exported.folder}  (trial {number}: {record.metric_name} {result.metric:.4f}, held out "
        f"{result.heldout_metric:.4f}, {result.cost_name} ratio {result.ratio:.3f})"
    )
    for note in exported.notes:
        typer.echo(f"  {note}")
    if push_to_hub is not None:
        typer.echo(push(out, push_to_hub))


@app.command()
def polish(
    context: typer.Context,
    run: Run,
    study_file: Annotated[
        Path,
        typer.Option(metavar="STUDY.py", help="The file that the run was launched from."),
    ],
    trial: Annotated[
        list[int] | None, typer.Option(help="This finished trial, repeatable; else the front.")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the train rows.")] = 6,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the polished models; RUN-polished by default.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Distil models of a run further, each on its own, into a run beside it."""
    from orchestrator.polishing import polish as polish_models
    from orchestrator.runs.records import read_run
    from orchestrator.study_file import load_study_of

    record, console = read_run(run), CommandConsole()
    with interrupted("finished trials are kept, polish again to go on"):
        polished = polish_models(
            record,
            load_study_of(study_file, record.name),
            trials=trial,
            epochs=epochs,
            out=out,
            device=device,
            command=shlex.join(["maskfront", *context.obj]),
            console=console,
        )
    show_end(polished, console)


@app.command()
def bench(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Exported models, models of trials, or one run: all models of its front.",
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="The model to compare with; the unpruned twin of the first by default."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Sequences in a batch, repeatable; 1, 8 and 32 by default."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens in a sequence, repeatable; by default the run's own, else 128."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="eager, bfloat16, compile, onnxruntime, onnxruntime-int8 or "
            "onnxruntime-int4, repeatable; all by default."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timed forward passes of each model.")] = 20,
    threads: Annotated[
        int | None, typer.Option(help="Threads of one operation on the CPU.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    study_file: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY.py",
            help="The file that the run was launched from: bfloat16 and int8 of its models and of "
            "the unpruned one are scored too.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time models side by side: FLOPs ratio against milliseconds and megabytes."""
    from objectives.delivery.bench import bench as bench_models
    from objectives.device import choose_device, quiet_libraries
    from objectives.engines.names import check_engines
    from orchestrator.runs.records import read_run
    from orchestrator.runs.run_folder import RunFolder
    from orchestrator.study_file import load_study_of
    from reports.speed import bench_front, keep_speeds
    from reports.timings import timings_document, timings_table

    quiet_libraries()
    of_front = len(models) == 1 and RunFolder(models[0]).exists()
    record = read_run(models[0]) if of_front else None
    if record is None and study_file is not None:
        raise RunError("--study-file goes with a run: models alone were made from no study")
    study = None if record is None or study_file is None else load_study_of(study_file, record.name)
    time_all = (
        partial(bench_models, models) if record is None else partial(bench_front, record, study)
    )
    timed = time_all(
        against=against,
        batches=batch or (1, 8, 32),
        lengths=length or (128 if record is None else int(record.definition["seq_len"]),),
        engines=check_engines(engine),
        rounds=rounds,
        threads=threads,
        device=choose_device(device),
        say=say_to_stderr,
    )
    if as_json:
        typer.echo(json.dumps(timings_document(timed), indent=2))
    else:
        Console().print(timings_table(timed))
    if record is not None:
        kept = keep_speeds(record, timed)
        if not as_json:
            typer.echo(f"kept in {kept}; maskfront report shows it")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: an error that the user can mend is one line and exit code 2. The arguments are
    those of the process where none are given."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(given, obj=given)
    except MaskfrontError as error:
        say_to_stderr(in_flags(str(error)))
        sys.exit(2)
    except OSError as error:
        named = f"'{error.filename}' could not be written or read ({error.strerror})"
        say_to_stderr(str(error) if error.filename is None else named)
        sys.exit(2)


if __name__ == "__main__":
    main()

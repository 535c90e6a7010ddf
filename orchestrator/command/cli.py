"""The command `maskfront`: its verbs, most of which are also Python calls.

Of orchestrator/ only `command/` may import reports: it is the composition root.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from objectives.errors import MaskfrontError
from orchestrator.command.options import (
    AsJson,
    RunPath,
    StudyFile,
    StudyName,
    flag,
    takes,
)
from orchestrator.command.shared import interrupted, show_end, show_front, show_runs
from orchestrator.errors import RunError
from orchestrator.signals import unattended
from orchestrator.study_file import launched_file, load_study, load_study_of
from orchestrator.terminal import say, say_to_stderr

# What a verb needs is imported when it runs: help and fronts answer without loading torch.

app = typer.Typer(
    name="maskfront",
    help="Smaller BERT classifiers: studies, fronts of accuracy against cost, models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("maskfront"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None: ...


def _again(context: typer.Context) -> str:
    """The command at work, as a shell takes it."""
    return shlex.join(["maskfront", *context.obj])


@app.command("compress")
@takes("orchestrator.command.compressing:compress", "command")
def _compress(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A fine-tuned classifier: folder or hub name.")
    ],
    **options: Any,
) -> None:
    """Make a classifier small and fast in minutes, as far as a gate allows, without labels."""
    from objectives.device import quiet_libraries
    from orchestrator.command.compressing import compress

    quiet_libraries()
    with unattended(), interrupted("finished trials are kept, run the same command to go on"):
        compressed = compress(model, **options, command=_again(context), say=say_to_stderr)
    done = compressed.deployed
    typer.echo(f"{done.folder}  ({done.what()})")
    typer.echo(f"  {done.worth(compressed.run.metric_name)}")
    if not compressed.passed:
        typer.echo("  it does not pass the gate: it is the nearest")
    for line in compressed.advice:
        typer.echo(f"  {line}")
    report_file = compressed.run.folder / "report.html"
    typer.echo(f"all that was tried, in {compressed.seconds:.0f} s: {report_file}")


@app.command("run")
@takes("orchestrator.command.launching:launch", "report", "command")
def _run(
    context: typer.Context,
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="A Python file with study = Study(...).")
    ],
    name: StudyName = "study",
    **options: Any,
) -> None:
    """Launch a study, or continue it up to its number of trials."""
    from orchestrator.command.launching import launch

    console = Console()
    with unattended(), interrupted("finished trials are kept, launch again to go on"):
        finished = launch(
            load_study(study, name), **options, command=_again(context), console=console
        )
        show_end(finished, console, study)


@app.command("work")
@takes("orchestrator.workers.loop:work", "number", "token")
def _work(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.py", help="The file that the study was run from.")
    ],
    name: StudyName = "study",
    **options: Any,
) -> None:
    """Add a worker to a study that `run` has started, from this or another machine."""
    from orchestrator.workers.loop import work

    with interrupted("other workers, or the next launch, take what is left"):
        work(load_study(study, name), **options, console=Console())


@app.command("lengths")
@takes("objectives.workbench.lengths:lengths")
def _lengths(
    study: Annotated[Path, typer.Argument(metavar="STUDY.py", help="A file as `run` takes it.")],
    name: StudyName = "study",
    max_length: Annotated[
        list[int], typer.Option(help="Tokens at which texts are cut off; may be repeated.")
    ] = [512, 256, 128, 64],  # noqa: B006
    **options: Any,
) -> None:
    """Show what a study's teacher is worth at several lengths of its texts; nothing is searched."""
    from objectives.device import quiet_libraries
    from objectives.workbench.lengths import lengths

    quiet_libraries()
    read = load_study(study, name)
    heads = ("length", "truncation", "cut off", "tokens", "seconds", read.task.metric, "95%")
    typer.echo("{:>7} {:>10} {:>8} {:>7} {:>8} {:>10} {:>15}".format(*heads))
    for row in lengths(read.task, read.teacher, max_length, **options):
        low, high = row.interval
        typer.echo(
            f"{row.max_length:7} {row.truncation:>10} {row.cut_off:8.1%} {row.tokens:7.1f} "
            f"{row.seconds:8.2f} {row.metric:10.4f} {low:7.4f}-{high:.4f}"
        )


@app.command("status")
def _status(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run, or a folder of runs, one a line; or give --storage.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="URL of a storage, such as postgresql://USER@HOST/DATABASE.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--study", help="Name of the study, if the storage holds several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a study stands: trials, rate, time left, workers, front, failures."""
    from orchestrator.runs.run_folder import runs_in
    from orchestrator.status import run_status, storage_status

    if (run is None) == (storage is None):
        raise RunError("name either a run folder or a storage", "storage")
    if run is not None and (runs := runs_in(run)) not in ([], [run]):
        show_runs(runs, Console(), as_json=as_json)
        return
    if run is not None:
        state = run_status(run)
    else:
        assert storage is not None
        state = storage_status(storage, name)
    if as_json:
        typer.echo(json.dumps(state.document(), indent=2))
    else:
        for line in state.lines():
            say(Console(), line)


@app.command("clean")
def _clean(
    run: RunPath,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it, not only count it.")] = False,
) -> None:
    """Free the room that a finished run's cache takes; a later launch makes it again.

    Trials, the fine-tuned teacher and latency tables stay.
    """
    from orchestrator.workers.cleaning import clean

    parts, size = clean(run, yes=yes)
    done = "removed" if yes else "--yes removes them"
    what = (
        f"{size:,} bytes in {len(parts)} files and folders; {done}" if parts else "nothing to free"
    )
    say(Console(), f"{run / 'cache'}: {what}")


@app.command("serve-storage")
def _serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; all but the default let everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.storage.proxy import serve_storage

    with interrupted("the storage is no longer served"):
        serve_storage(storage, port, typer.echo, host)


@app.command("front")
def _front(run: RunPath, as_json: AsJson = False) -> None:
    """Show the Pareto front of a run."""
    from orchestrator.runs.records import front_document, read_run
    from reports.pareto import pareto_view
    from reports.recommended import expected_of

    record = read_run(run)
    if as_json:
        pick = expected_of(pareto_view(record))
        expected = pick and {
            "trial": pick.trial.number,
            "why": pick.reasons,
            "metric": pick.expected,
        }
        typer.echo(json.dumps({**front_document(record), "expected": expected}, indent=2))
    else:
        show_front(record, Console())


@app.command("report")
def _report(
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


@app.command("dashboard")
def _dashboard(
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


@app.command("export")
@takes("orchestrator.command.run:Run.export")
def _export(
    run: RunPath,
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX in int8 too, scored on the data of the study.")
    ] = False,
    int4: Annotated[
        bool, typer.Option("--int4", help="The same in 4 bits: smaller and slower than int8.")
    ] = False,
    study_file: StudyFile = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload the folder; a new REPO is private.")
    ] = None,
    *,
    out: Path,
    onnx: bool,
    **way: Any,
) -> None:
    """Write a model that transformers loads anywhere: chosen by trial, size, metric, ms or knee."""
    from orchestrator.runs.records import read_run
    from reports.choice import choose

    record = read_run(run)
    number = choose(record, **way)
    scored = int8 or int4
    if study_file is not None and not scored:
        raise RunError("only int8 and int4 need a study file: its data scores them", "study_file")
    file = study_file or launched_file(record.folder) if scored else None

    from objectives.device import quiet_libraries  # what was refused above need not wait for torch
    from orchestrator.runs.results import ratio_text
    from reports.exporting.export import export
    from reports.exporting.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    quiet_libraries()
    study = None if file is None else load_study_of(file, record.name)
    exported = export(
        record, number, out, onnx=onnx, int8=study if int8 else None, int4=study if int4 else None
    )
    result = next(trial.result for trial in record.finished if trial.number == number)
    typer.echo(
        f"{exported.folder}  (trial {number}: {record.metric_name} {result.metric:.4f}, held out "
        f"{result.heldout_metric:.4f}, {result.cost_name} ratio {ratio_text(result.ratio)})"
    )
    for note in exported.notes:
        typer.echo(f"  {note}")
    if push_to_hub is not None:
        typer.echo(push(out, push_to_hub))


@app.command("cascade")
@takes("orchestrator.command.run:Run.cascade")
def _cascade(
    run: RunPath, study_file: StudyFile = None, *, out: Path, engine: str | None, **aims: Any
) -> None:
    """Write several models as one: each is asked where the one before it is unsure."""
    from objectives.device import quiet_libraries
    from objectives.engines.names import check_engines
    from orchestrator.command.cascading import cascade
    from orchestrator.runs.records import read_run

    quiet_libraries()
    record = read_run(run)
    served = None if engine is None else check_engines([engine])[0]
    study = load_study_of(study_file or launched_file(run), record.name)
    done = cascade(record, study, out, aims, served, say_to_stderr)
    typer.echo(f"{done.folder}  ({done.what()}; {done.worth(record.metric_name)})")


@app.command("polish")
@takes("orchestrator.command.polishing:polish", "trials", "population", "workers", "command")
def _polish(
    context: typer.Context,
    run: RunPath,
    study_file: StudyFile = None,
    trial: Annotated[
        list[int] | None, typer.Option(help="Polish this trial; repeatable; by default the front.")
    ] = None,
    **options: Any,
) -> None:
    """Distil models of a run further, one by one, into a new run beside it."""
    from orchestrator.command.polishing import polish
    from orchestrator.runs.records import read_run

    record, console = read_run(run), Console()
    with unattended(), interrupted("finished trials are kept, polish again to go on"):
        polished = polish(
            record,
            load_study_of(study_file or launched_file(run), record.name),
            trials=trial,
            command=_again(context),
            console=console,
            **options,
        )
    show_end(polished, console)


@app.command("bench")
@takes("objectives.delivery.bench:bench")
def _bench(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Exported models, models of trials, or one run: all models of its front.",
        ),
    ],
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
    study_file: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY.py",
            help="The file that the run was launched from; by default the one in launch.json. With "
            "it onnxruntime is also timed from text to label, and bfloat16 and int8 are scored, as "
            "is the unpruned model.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Time models side by side: FLOPs ratio against milliseconds and megabytes."""
    from objectives.delivery.bench import bench
    from objectives.device import choose_device, quiet_libraries
    from objectives.engines.names import check_engines
    from orchestrator.runs.records import read_run
    from orchestrator.runs.run_folder import RunFolder
    from reports.speed import bench_front, keep_speeds
    from reports.timings import timings_document, timings_table

    quiet_libraries()
    of_front = len(models) == 1 and RunFolder(models[0]).exists()
    record = read_run(models[0]) if of_front else None
    if record is None and study_file is not None:
        raise RunError("a study file needs a run: name the run folder, not models", "study_file")
    if record is None:
        time_all = partial(bench, models)
    else:
        if study_file is None and options["against"] is None:
            try:
                study_file = launched_file(record.folder)
            except RunError as error:
                say_to_stderr(f"no text is read, only token ids are timed: {error.naming(flag)}")
        study = None if study_file is None else load_study_of(study_file, record.name)
        time_all = partial(bench_front, record, study)
    timed = time_all(
        batches=batch or (1, 8, 32),
        lengths=length or (128 if record is None else int(record.definition["seq_len"]),),
        engines=check_engines(engine),
        device=choose_device(device),
        say=say_to_stderr,
        **options,
    )
    if as_json:
        typer.echo(json.dumps(timings_document(timed), indent=2))
    else:
        Console().print(timings_table(timed))
    if record is not None:
        file = keep_speeds(record, timed)
        if not as_json:
            typer.echo(f"kept in {file}; maskfront report shows it")


@app.command("check")
@takes("objectives.delivery.checking:check")
def _check(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What compress or cascade wrote.")
    ],
    **options: Any,
) -> None:
    """Test whether a folder still answers as the original model, on new texts; 1 if it does not."""
    from objectives.delivery.checking import check
    from objectives.device import quiet_libraries

    quiet_libraries()
    with interrupted("nothing was written"):
        checked = check(folder, **options, say=say_to_stderr)
    typer.echo(checked.sentence())
    for line in checked.lines():
        typer.echo(f"  {line}")
    if checked.alarm:
        raise typer.Exit(1)


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

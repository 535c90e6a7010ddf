"""The command `maskfront`: verbs that make something; those that only read are in `reading`. Of
orchestrator/ only `command/`, the composition root, may import reports."""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from objectives.errors import MaskfrontError
from orchestrator.command import reading
from orchestrator.command.options import (
    RunPath,
    StudyFile,
    StudyName,
    StudyPath,
    flag,
    interrupted,
    takes,
)
from orchestrator.errors import RunError
from orchestrator.signals import unattended
from orchestrator.study_file import launched_file, load_study, load_study_of
from orchestrator.terminal import for_shell, say, say_to_stderr, visible

if TYPE_CHECKING:
    from orchestrator.runs.records import RunRecord

# What a verb needs is imported when it runs: help and fronts answer without loading torch.

# Left by `clean`: latency tables, as times differ from one measurement to the next, and fine-tuned
# teachers, which `bench` and `cascade` serve and which another machine would make otherwise.
_KEPT = re.compile(r"latency-.*|[0-9a-f]{16}")

app = typer.Typer(
    name="maskfront",
    help="Smaller BERT classifiers: studies, fronts of accuracy against cost, models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(reading.app)


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
    return shlex.join(["maskfront", *context.obj])


def show_end(run: "RunRecord", console: Console, study_file: Path | None = None) -> None:
    """Show the end of a launch: the front, where the report is, and next commands."""
    from orchestrator.runs.run_folder import RunFolder
    from reports.recommended import recommended

    reading.show_front(run, console)
    folder, best = for_shell(run.folder), recommended(run)
    scored = "" if study_file is None else f" --study-file {for_shell(study_file)}"
    say(console, f"report     {RunFolder(run.folder).report}")
    say(console, f"dashboard  maskfront dashboard {folder}")
    if best:
        say(console, f"bench      maskfront bench {folder}{scored}")
        say(console, f"export     maskfront export {folder} --trial {best.number} --out my-model")


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
    from reports.figures.compressed import read_choice

    quiet_libraries()
    with unattended(), interrupted("finished trials are kept, run the same command to go on"):
        compressed = compress(model, **options, command=_again(context), say=say_to_stderr)
    done = compressed.deployed
    typer.echo(f"{done.folder}  ({done.what()})")
    typer.echo(f"  {done.worth(compressed.run.task_metric)}")
    if not compressed.passed:
        choice = read_choice(compressed.run.folder)
        assert choice is not None, "it was written just now"
        typer.echo(f"  {choice.sentences[2]}")
    for line in compressed.advice:
        typer.echo(f"  {line}")
    report_file = compressed.run.folder / "report.html"
    typer.echo(f"all that was tried, in {compressed.seconds:.0f} s: {report_file}")


@app.command("run")
@takes("orchestrator.command.launching:launch", "report", "command")
def _run(
    context: typer.Context, study: StudyPath, name: StudyName = "study", **options: Any
) -> None:
    """Launch a study, or continue it up to its number of trials."""
    from orchestrator.command.launching import launch

    console = Console()
    with unattended(), interrupted("finished trials are kept, launch again to go on"):
        run = launch(load_study(study, name), **options, command=_again(context), console=console)
        show_end(run, console, study)


@app.command("work")
@takes("orchestrator.workers.loop:work", "number", "token")
def _work(study: StudyPath, name: StudyName = "study", **options: Any) -> None:
    """Add a worker to a study that `run` has started, from this or another machine."""
    from orchestrator.workers.loop import work

    with interrupted("other workers, or the next launch, take what is left"):
        work(load_study(study, name), **options, console=Console())


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
    from reports.exporting.export import check_push, export, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    quiet_libraries()
    study = None if file is None else load_study_of(file, record.name)
    exported = export(
        record, number, out, onnx=onnx, int8=study if int8 else None, int4=study if int4 else None
    )
    result = next(trial.result for trial in record.finished if trial.number == number)
    scores = f"{record.metric_name} {result.metric:.4f}, held out {result.heldout_metric:.4f}"
    cost = f"{result.cost_name} ratio {ratio_text(result.ratio)}"
    typer.echo(visible(f"{exported.folder}  (trial {number}: {scores}, {cost})"))
    for note in exported.notes:
        typer.echo(visible(f"  {note}"))
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
    typer.echo(f"{done.folder}  ({done.what()}; {done.worth(record.task_metric)})")


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

    record, console, again = read_run(run), Console(), _again(context)
    with unattended(), interrupted("finished trials are kept, polish again to go on"):
        study = load_study_of(study_file or launched_file(run), record.name)
        polished = polish(record, study, trials=trial, command=again, console=console, **options)
    show_end(polished, console)


@app.command("clean")
def _clean(
    run: RunPath,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it, not only count it.")] = False,
) -> None:
    """Free the room that a finished run's cache takes; a later launch makes it again.

    Trials, the fine-tuned teacher and latency tables stay.
    """
    from orchestrator.runs.records import load_optuna_study
    from orchestrator.runs.run_folder import RunFolder
    from orchestrator.workers.heartbeat import living

    optuna_study, folder = load_optuna_study(run), RunFolder(run)
    if workers := living(optuna_study, folder):
        raise RunError(f"'{run}' is at work ({', '.join(workers)}); wait for it, or stop it")
    with folder.locked():
        entries = sorted(folder.cache.iterdir()) if folder.cache.is_dir() else []
        parts = [e for e in entries if not _KEPT.fullmatch(e.name) and not e.is_symlink()]
        inside = [file.lstat() for part in parts for file in (part, *part.rglob("*"))]
        # A file that a run of `polish` shares takes its room all the same.
        size = sum(file.st_size for file in inside if S_ISREG(file.st_mode) and file.st_nlink == 1)
        for part in parts if yes else ():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    done = "removed" if yes else "--yes removes them"
    freed = f"{size:,} bytes in {len(parts)} files and folders; {done}"
    say(Console(), f"{folder.cache}: {freed if parts else 'nothing to free'}")


@app.command("serve-storage")
def _serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; all but the default let everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.storage.connect import serve_storage

    with interrupted("the storage is no longer served"):
        serve_storage(storage, port, typer.echo, host)


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

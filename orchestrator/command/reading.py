"""Commands that read a run or a model and change neither."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from objectives.engines.names import ENGINES, check_engines
from orchestrator.command.options import (
    AsJson,
    RunPath,
    StudyFile,
    StudyName,
    StudyPath,
    flag,
    interrupted,
    takes,
)
from orchestrator.errors import RunError
from orchestrator.study_file import launched_file, load_study, load_study_of
from orchestrator.terminal import for_shell, say, say_to_stderr

if TYPE_CHECKING:
    from orchestrator.runs.records import RunRecord

app = typer.Typer()


@app.command("lengths")
@takes("objectives.workbench.teacher_trials:lengths")
def _lengths(
    study: StudyPath,
    name: StudyName = "study",
    max_length: Annotated[
        list[int], typer.Option(help="Tokens at which texts are cut off; may be repeated.")
    ] = [512, 256, 128, 64],  # noqa: B006
    **options: Any,
) -> None:
    """Show what a study's teacher is worth at several lengths of its texts; nothing is searched."""
    from objectives.device import quiet_libraries
    from objectives.workbench.teacher_trials import lengths

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
    if run is not None and name is not None:
        raise RunError("a run folder has one study; name one only of a storage", "storage")
    if run is not None and (runs := runs_in(run)) not in ([], [run]):
        _show_runs(runs, Console(), as_json=as_json)
        return
    state = storage_status(str(storage), name) if run is None else run_status(run)
    if as_json:
        typer.echo(json.dumps(state.document(), indent=2))
    else:
        for line in state.lines():
            say(Console(), line)


def _show_runs(runs: Sequence[Path], console: Console, *, as_json: bool) -> None:
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


@app.command("front")
def _front(run: RunPath, as_json: AsJson = False) -> None:
    """Show the Pareto front of a run."""
    from orchestrator.runs.records import front_document, read_run
    from reports.pareto import pareto_view
    from reports.recommended import expected_of

    record = read_run(run)
    if as_json:
        row = expected_of(pareto_view(record))
        expected = row and {"trial": row.trial.number, "why": row.reasons, "metric": row.expected}
        typer.echo(json.dumps({**front_document(record), "expected": expected}, indent=2))
    else:
        show_front(record, Console())


def show_front(run: "RunRecord", console: Console) -> None:
    """Print the front, the recommended model, how sure that is, and its expected metric."""
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
        list[str] | None, typer.Option(help=f"{', '.join(ENGINES)}; repeatable; all by default.")
    ] = None,
    study_file: StudyFile = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Time models side by side: FLOPs ratio against milliseconds and megabytes.

    With a study file onnxruntime is also timed from text to label, and fewer bits are scored.
    """
    from objectives.delivery.bench import bench
    from objectives.device import choose_device, quiet_libraries
    from orchestrator.runs.records import read_run
    from orchestrator.runs.run_folder import RunFolder
    from reports.figures.compressed import read_choice
    from reports.speed import bench_front, keep_speeds, timings_document, timings_table

    quiet_libraries()
    of_front = len(models) == 1 and RunFolder(models[0]).exists()
    record = read_run(models[0]) if of_front else None
    if record is not None and read_choice(record.folder) is not None:
        raise RunError(
            f"`compress` has timed the models of '{models[0]}' from text to label: maskfront "
            "report shows it; to time models again, name their folders"
        )
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

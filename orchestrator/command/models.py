"""The verbs about models: taken out of a run, distilled further, timed, or made in one go."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.command.options import AsJson, Device, Run, StudyFile, StudyFileIfAny
from orchestrator.command.shared import interrupted, show_end
from orchestrator.errors import RunError
from orchestrator.signals import unattended
from orchestrator.study_file import load_study_of
from orchestrator.terminal import say_to_stderr


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")],
    trial: Annotated[int | None, typer.Option(help="Export this finished trial.")] = None,
    max_ratio: Annotated[
        float | None, typer.Option(help="The best model on the front with at most this cost ratio.")
    ] = None,
    min_metric: Annotated[
        float | None, typer.Option(help="The cheapest model on the front with this metric or more.")
    ] = None,
    knee: Annotated[
        bool, typer.Option("--knee", help="The model at the knee, where the front bends most.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file too.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX in int8 too, scored on the data of --study-file.")
    ] = False,
    int4: Annotated[
        bool, typer.Option("--int4", help="The same in 4 bits: smaller and slower than int8.")
    ] = False,
    study_file: StudyFileIfAny = None,
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
            "int8 and int4 need the study file, and nothing else does: they are scored on its "
            "data, which is not in the run folder",
            "study_file",
        )

    from objectives.device import quiet_libraries  # what was refused above need not wait for torch
    from orchestrator.runs.results import ratio_text
    from reports.exporting.export import export as export_model
    from reports.exporting.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    quiet_libraries()
    study = None if study_file is None else load_study_of(study_file, record.name)
    exported = export_model(
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


def polish(
    context: typer.Context,
    run: Run,
    study_file: StudyFile,
    trial: Annotated[
        list[int] | None, typer.Option(help="Polish this trial; repeatable; by default the front.")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the train rows.")] = 6,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the polished models; RUN-polished by default.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Distil models of a run further, one by one, into a new run beside it."""
    from orchestrator.command.polishing import polish as polish_models
    from orchestrator.runs.records import read_run

    record, console = read_run(run), Console()
    with unattended(), interrupted("finished trials are kept, polish again to go on"):
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
            help="The file that the run was launched from. With it onnxruntime is also timed from "
            "text to label, and bfloat16 and int8 are scored, as is the unpruned model.",
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
    from reports.speed import bench_front, keep_speeds
    from reports.timings import timings_document, timings_table

    quiet_libraries()
    of_front = len(models) == 1 and RunFolder(models[0]).exists()
    record = read_run(models[0]) if of_front else None
    if record is None and study_file is not None:
        raise RunError("a study file needs a run: name the run folder, not models", "study_file")
    if record is None:
        time_all = partial(bench_models, models)
    else:
        study = None if study_file is None else load_study_of(study_file, record.name)
        time_all = partial(bench_front, record, study)
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


def cascade(
    run: Run,
    study_file: StudyFile,
    out: Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")],
    min_agreement: Annotated[
        float | None,
        typer.Option(help="Fastest with at least this share of the old answers; default 0.99."),
    ] = None,
    min_metric: Annotated[
        float | None, typer.Option(help="Or: the fastest with this metric or more.")
    ] = None,
    max_ms: Annotated[
        float | None, typer.Option(help="Or: the closest to the original in this many ms per text.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="onnxruntime, onnxruntime-int8 or onnxruntime-int4 for all; by default each model "
            "has the faster one of float32 and int8."
        ),
    ] = None,
) -> None:
    """Write two models as one: the large one answers where the small one is unsure."""
    from objectives.device import quiet_libraries
    from objectives.engines.names import check_engines
    from orchestrator.command.cascading import cascade as cascade_models
    from orchestrator.runs.records import read_run

    quiet_libraries()
    record = read_run(run)
    aims = {"min_agreement": min_agreement, "min_metric": min_metric, "max_ms": max_ms}
    served = None if engine is None else check_engines([engine])[0]
    study = load_study_of(study_file, record.name)
    done = cascade_models(record, study, out, aims, served, say_to_stderr)
    typer.echo(f"{done.folder}  ({done.what()}; {done.worth(record.metric_name)})")


def compress(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A fine-tuned classifier: folder or hub name.")
    ],
    data: Annotated[Path, typer.Option(help="Texts: one per line (.txt), or a table.")],
    out: Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")],
    text: Annotated[str, typer.Option(help="In a table, the column of the text.")] = "text",
    label: Annotated[str, typer.Option(help="The column of the labels, if any.")] = "label",
    delimiter: Annotated[str | None, typer.Option(help="Between the columns of a CSV.")] = None,
    encoding: Annotated[str, typer.Option(help="Of the file's characters.")] = "utf-8",
    quotechar: Annotated[
        str | None, typer.Option(help="Around fields of a CSV; '' if quotes are text.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time for everything.")] = 10,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            help="The gate: share of texts with the same answer; 0.95 if no gate is given."
        ),
    ] = None,
    min_metric_kept: Annotated[
        float | None, typer.Option(help="Or: share of the accuracy on the labels to keep.")
    ] = None,
    max_ms: Annotated[
        float | None,
        typer.Option(help="Or: most ms per text; takes the closest model that is as fast."),
    ] = None,
    take_nearest: Annotated[
        bool, typer.Option("--take-nearest", help="Write the nearest model if none passes.")
    ] = False,
    max_length: Annotated[int, typer.Option(help="Cut texts off at this many tokens.")] = 128,
) -> None:
    """Make a classifier small and fast in minutes, as far as a gate allows, without labels."""
    from objectives.device import quiet_libraries
    from orchestrator.command.compressing import compress as compress_model

    quiet_libraries()
    with unattended(), interrupted("finished trials are kept, run the same command to go on"):
        found = compress_model(
            model,
            data,
            out=out,
            text=text,
            label=label,
            delimiter=delimiter,
            encoding=encoding,
            quotechar=quotechar,
            minutes=minutes,
            min_agreement=min_agreement,
            min_metric_kept=min_metric_kept,
            max_ms=max_ms,
            take_nearest=take_nearest,
            max_length=max_length,
            command=shlex.join(["maskfront", *context.obj]),
            say=say_to_stderr,
        )
    done = found.deployed
    typer.echo(f"{done.folder}  ({done.what()})")
    typer.echo(f"  {done.worth(found.run.metric_name)}")
    if not found.passed:
        typer.echo("  it does not pass the gate: it is the nearest")
    for line in found.advice:
        typer.echo(f"  {line}")
    typer.echo(f"all that was tried, in {found.seconds:.0f} s: {found.run.folder / 'report.html'}")

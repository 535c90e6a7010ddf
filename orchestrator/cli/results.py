"""The verbs of what a study found: front, report, dashboard, export, bench."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli.terminal import front_table, mendable, say_at_once, say_to_stderr
from orchestrator.errors import RunError

if TYPE_CHECKING:
    from orchestrator.records import RunRecord
    from reports.export import Exported

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/quickstart.")
]
Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Folders of runs: several are laid over one another."),
]


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
        Console().print(front_table(record))


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; RUN/report.html for one run. A name in .svg, .png or .pdf: the front."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page anew while the study runs.")
    ] = False,
) -> None:
    """Write the HTML page of a run, or of several on the same axes, or a picture of the front."""
    from orchestrator.records import read_run
    from orchestrator.run_folder import RunFolder
    from reports.page import write_report
    from reports.picture import front_image
    from reports.watch import watch_report

    def written(page: Path) -> None:
        sys.stdout.write(f"{page}\n")
        sys.stdout.flush()

    if out is None and len(runs) > 1:
        raise RunError("a page of several runs is none of theirs: name it with --out FILE.html")
    target = RunFolder(runs[0]).report if out is None else out
    if watch and target.suffix != ".html":
        raise RunError(f"--watch writes a page: '{target}' must end in .html")
    if watch:
        with suppress(KeyboardInterrupt):
            watch_report(runs, target, written)
        return
    records = [read_run(run) for run in runs]
    write = write_report if target.suffix == ".html" else front_image
    written(write(records, target))


def dashboard(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="A run, a folder of runs, or a storage's URL.")
    ],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8080,
) -> None:
    """Browse a run, a folder of runs or a storage in optuna-dashboard, until Ctrl-C."""
    from orchestrator.dashboard import serve

    serve(source, port, say_at_once)


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
        bool, typer.Option("--int8", help="And one in int8, measured on the data of --study-file.")
    ] = False,
    study_file: Annotated[
        Path | None,
        typer.Option(metavar="STUDY.py", help="The file that the run was launched from."),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload the folder; a new REPO is private.")
    ] = None,
) -> None:
    """Write a model that transformers loads anywhere: chosen by number, size, worth or knee."""
    from orchestrator.records import read_run
    from reports.choice import choose
    from reports.hub import check_push, push

    record = read_run(run)
    number = choose(record, trial=trial, max_ratio=max_ratio, min_metric=min_metric, knee=knee)
    if int8 != (study_file is not None):
        raise RunError(
            "--int8 and --study-file go together: what int8 loses is measured on the study's own "
            "data, which a run folder does not hold"
        )
    if push_to_hub is not None:
        check_push(push_to_hub)
    exported = _export(record, number, out, onnx=onnx, study_file=study_file)
    sys.stdout.write(f"{exported.folder}  (trial {number})\n")
    for note in exported.notes:
        sys.stdout.write(f"  {note}\n")
    if push_to_hub is not None:
        sys.stdout.write(f"{push(out, push_to_hub)}\n")


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
    batch: Annotated[list[int] | None, typer.Option(help="Sequences; 1, 8 and 32.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Tokens in each; 128.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="eager, compile or onnxruntime; all by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Forward passes of each that are timed.")] = 20,
    threads: Annotated[int | None, typer.Option(help="Of one operation on the CPU.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Time models side by side: FLOPs ratio against milliseconds."""
    from objectives.bench import bench as bench_models
    from objectives.bench import check_engines
    from objectives.device import choose_device, quiet_libraries
    from orchestrator.records import read_run
    from orchestrator.run_folder import RunFolder
    from reports.speed import bench_front
    from reports.timings import timings_document, timings_table

    quiet_libraries()
    with mendable():
        of_front = len(models) == 1 and RunFolder(models[0]).exists()
        time_all = (
            partial(bench_front, read_run(models[0])) if of_front else partial(bench_models, models)
        )
        timed = time_all(
            against=against,
            batches=batch or (1, 8, 32),
            lengths=length or (128,),
            engines=check_engines(engine),
            rounds=rounds,
            threads=threads,
            device=choose_device(device),
            say=say_to_stderr,
        )
    if as_json:
        sys.stdout.write(json.dumps(timings_document(timed), indent=2) + "\n")
    else:
        Console().print(timings_table(timed))
        if of_front:
            say_at_once(f"kept in {RunFolder(models[0]).bench}; maskfront report shows it")


def _export(
    record: RunRecord, trial: int, out: Path, *, onnx: bool, study_file: Path | None
) -> Exported:
    from objectives.device import quiet_libraries
    from orchestrator.study_file import load_study_of
    from reports.export import export as export_model

    quiet_libraries()
    with mendable():
        study = None if study_file is None else load_study_of(study_file, record.name)
        return export_model(record, trial, out, onnx=onnx, int8=study)

"""The verbs of a study on its way: run, work, status, serve-storage."""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli.terminal import front_table, interrupted, mendable, say_at_once
from orchestrator.errors import RunError

if TYPE_CHECKING:
    from orchestrator.records import RunRecord

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
    from orchestrator.run_folder import RunFolder
    from orchestrator.study_file import load_study
    from reports.dashboard import publish
    from reports.page import write_report

    def follow(record: RunRecord) -> None:
        folder = RunFolder(record.folder)
        folder.write_launch(shlex.join(["maskfront", *sys.argv[1:]]), source)
        write_report([record], folder.report)
        publish(record)

    console = Console()
    with mendable(), interrupted("finished trials are kept, launch again to go on"):
        loaded = load_study(study, name)
        source = study.read_text(encoding="utf-8")
        if workers is None:
            workers = default_workers(device)
        launches = (
            launch
            if workers == 1 and backend is Backend.loky
            else partial(launch_workers, workers=workers, backend=backend.value, cluster=cluster)
        )
        finished = launches(
            loaded,
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
            callbacks=[follow],
            console=console,
        )
    follow(finished)
    folder = shlex.quote(str(finished.folder))
    console.print(front_table(finished))
    best = finished.front[-1].number if finished.front else "N"
    for line in (
        f"report     {RunFolder(finished.folder).report}",
        f"dashboard  maskfront dashboard {folder}",
        f"export     maskfront export {folder} --trial {best} --out my-model",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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

    with mendable(), interrupted("other workers, or the next launch, take what is left"):
        join(
            load_study(study, name),
            trials=trials,
            population=population,
            out=out,
            device=device,
            storage=storage,
        )


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


def serve_storage(
    storage: Annotated[str, typer.Option(help="postgresql://..., mysql://... or sqlite:///FILE.")],
    port: Annotated[int, typer.Option(help="Port to serve at.")] = 13000,
    host: Annotated[
        str, typer.Option(help="Address to serve at; any other than this lets everyone in.")
    ] = "127.0.0.1",
) -> None:
    """Serve a storage to very many workers (grpc://HOST:PORT), until Ctrl-C."""
    from orchestrator.proxy import serve_storage as serve

    with interrupted("the storage is served no longer"):
        serve(storage, port, say_at_once, host)

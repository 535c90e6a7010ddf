"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/quickstart.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Storage = Annotated[
    str | None,
    typer.Option(
        help="sqlite:///FILE, postgresql://USER@HOST/DATABASE, mysql://..., grpc://HOST:PORT or "
        "journal:///FILE; the run folder's own by default. The password can be set in the "
        "environment: MASKFRONT_STORAGE_PASSWORD, and MASKFRONT_STORAGE_HOST, the host it is for."
    ),
]
Name = Annotated[str, typer.Option("--study", help="Variable or name of the study.")]
StudyFile = Annotated[
    Path | None, typer.Option(metavar="STUDY.py", help="The file that the run was launched from.")
]
Population = Annotated[
    Any,  # int, or "auto": typer takes no other union than that with None
    typer.Option(
        metavar="K|auto",
        parser=lambda text: text if text == "auto" else int(text),
        help="Trials that train together; by default the study's own number.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object only.")]

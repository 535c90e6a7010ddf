"""Arguments and options that several verbs share."""

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
        "journal:///FILE; the run folder's own by default. Set the password in "
        "MASKFRONT_STORAGE_PASSWORD, and the host for later commands in MASKFRONT_STORAGE_HOST."
    ),
]
Name = Annotated[str, typer.Option("--study", help="Variable that holds the study, or its name.")]
_STUDY_FILE = typer.Option(metavar="STUDY.py", help="The file that the run was launched from.")
StudyFile = Annotated[Path, _STUDY_FILE]
StudyFileIfAny = Annotated[Path | None, _STUDY_FILE]
Population = Annotated[
    Any,  # int, or "auto": typer takes no other union than that with None
    typer.Option(
        metavar="K|auto",
        parser=lambda text: text if text == "auto" else int(text),
        help="Number of trials that train together; by default the study's own.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object only.")]

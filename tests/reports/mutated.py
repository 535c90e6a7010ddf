"""A run folder in which somebody has changed something, and all that reads one."""

from __future__ import annotations

import copy
import io
import json
import math
import sqlite3
import wsgiref.util
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from objectives.errors import MaskfrontError
from orchestrator.command.cli import show_end
from orchestrator.command.run import load_run
from orchestrator.dashboard.server import application
from orchestrator.runs.records import front_document, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status
from reports.page.following import publish
from reports.page.page import write_report

OTHERS: tuple[Any, ...] = (
    *(None, True, 0, -1, 0.5, 10**400, 1e308, math.nan, -math.inf),
    *("", "text", "../../x", "\x1b[2J", [], [[]], [[[[1]]]], [1, "x"], {}, {"a": {"b": []}}),
)
"""What stands in for a value."""


def status(folder: Path) -> None:
    found = run_status(folder)
    json.dumps(found.document())
    found.lines()


def front(folder: Path) -> None:
    run = load_run(folder)
    json.dumps(front_document(run))
    show_end(run, Console(file=io.StringIO()))
    run.dataframe()


def report(folder: Path) -> None:
    write_report([read_run(folder)], folder.parent / "page.html")


def notes(folder: Path) -> None:
    publish(read_run(folder))


def dashboard(folder: Path) -> None:
    app = application(folder)

    def ask(path: str) -> Any:
        environ: dict[str, Any] = {"PATH_INFO": path, "HTTP_HOST": "localhost"}
        wsgiref.util.setup_testing_defaults(environ)
        told: list[str] = []
        body = b"".join(app(environ, lambda status, *_: told.append(status)))
        assert told[0].startswith(("200", "404")), body
        return json.loads(body)

    for study in ask("/api/studies")["study_summaries"]:
        ask(f"/api/studies/{study['study_id']}")


READERS: tuple[Callable[[Path], None], ...] = (status, front, report, notes, dashboard)


def problems(folder: Path, readers: tuple[Callable[[Path], None], ...] = READERS) -> Iterator[str]:
    """What readers raise that is not one line which names the folder or a file of it."""
    for reader in readers:
        try:
            reader(folder)
        except MaskfrontError as error:
            if "\n" in str(error) or len(str(error)) > 600 or folder.name not in str(error):
                yield f"{reader.__name__}: {error}"
        except Exception as error:
            yield f"{reader.__name__}: {type(error).__name__}: {error}"


def changed(document: Any, random: Random) -> tuple[Any, str]:
    """The document with one value of another kind, without a key, or with one more; and what."""
    document = copy.deepcopy(document)
    places = list(_places(document, ""))
    owner, key, where = random.choice(places)
    how = random.random()
    if how < 0.15:
        del owner[key]
        return document, f"{where} deleted"
    if how < 0.25 and isinstance(owner, dict):
        owner["later"] = {"version": 2}
        return document, f"{where} has a neighbour"
    owner[key] = random.choice(OTHERS)
    return document, f"{where} is {str(owner[key])[:20]!r}"


def _places(owner: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    pairs = owner.items() if isinstance(owner, dict) else enumerate(owner)
    for key, value in pairs:
        yield owner, key, f"{where}.{key}"
        if isinstance(value, dict | list):
            yield from _places(value, f"{where}.{key}")


def change_file(file: Path, random: Random) -> str:
    """Change a file of any kind: a value of its JSON, or its bytes."""
    content = file.read_bytes()
    if file.suffix == ".json" and random.random() < 0.7:
        document, how = changed(json.loads(content), random)
        file.write_text(json.dumps(document))
        return f"{file.name}: {how}"
    how, new = random.choice(
        [
            ("cut", content[: random.randrange(len(content))]),
            ("empty", b""),
            ("in UTF-16", content.decode("latin1").encode("utf-16")),
            ("NULs", bytes(len(content))),
            ("a list", b"[1, 2]"),
            ("nested", b"[" * 100_000),
        ]
    )
    file.write_bytes(new)
    return f"{file.name}: {how}"


def change_attribute(folder: RunFolder, random: Random) -> str:
    """Change a value of a study's or a trial's attribute, or take the attribute away."""
    table = random.choice(["study_user_attributes", "trial_user_attributes"])
    with closing(sqlite3.connect(folder.database)) as database, database:
        rows = database.execute(f"SELECT rowid, key, value_json FROM {table}").fetchall()
        row, key, text = random.choice(rows)
        how = random.random()
        if how < 0.1:
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
            return f"{key}: deleted"
        document, what = changed({key: json.loads(text)}, random)
        if key not in document:
            return "nothing"
        new = json.dumps(document[key])
        database.execute(f"UPDATE {table} SET value_json = ? WHERE rowid = ?", (new, row))
        return what

"""Errors name parameters, as a Python call does; the command line makes flags of them."""

from __future__ import annotations

import ast
import re
from io import StringIO
from pathlib import Path

import pytest
import typer

from orchestrator.command.cli import app
from orchestrator.command.shared import _PARAMETER, CommandConsole, in_flags
from orchestrator.terminal import say

ROOT = Path(__file__).resolve().parents[3]
FILES = [
    path
    for package in ("objectives", "orchestrator", "reports")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.parent.name != "command"
]


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("choose another folder with out=..., or", "choose another folder with --out, or"),
        ('backend="dask" needs cluster="tcp://S:1"', "--backend dask needs --cluster tcp://S:1"),
        ("max_ratio=..., min_metric=0.5 or knee=True;", "--max-ratio, --min-metric 0.5 or --knee;"),
        ("max_ratio=1e-05 is no share", "--max-ratio 1e-05 is no share"),
        ("Study(population=2), Task(device=...)", "Study(population=2), Task(device=...)"),
        ("timeout=3, layout=...", "timeout=3, layout=..."),
    ],
)
def test_parameters_become_flags(text: str, flags: str) -> None:
    assert in_flags(text) == flags


def test_what_a_launch_notes_becomes_flags_too() -> None:
    file = StringIO()
    say(CommandConsole(file=file), 'worker 1 ended; with out="runs/[a]"')
    assert file.getvalue() == "worker 1 ended; with --out runs/[a]\n"


def test_every_such_parameter_is_an_option() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    options = {option for own in commands for one in own.params for option in one.opts}
    (names,) = re.findall(r"\(([\w|]+)\)", _PARAMETER.pattern)
    assert {f"--{name.replace('_', '-')}" for name in names.split("|")} <= options


def test_no_error_below_the_command_line_speaks_of_flags() -> None:
    said = [
        text.value
        for path in FILES
        for error in ast.walk(ast.parse(path.read_text()))
        if isinstance(error, ast.Raise)
        for text in ast.walk(error)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]
    assert len(said) > 100
    assert [text for text in said if re.search(r"(?<![\w-])--[a-z]", text)] == []

"""Errors name parameters, as a Python call does; the command line makes flags of them."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest
import typer

from maskfront import launch
from orchestrator.command.cli import app
from orchestrator.command.options import flag
from orchestrator.errors import RunError

ROOT = Path(__file__).resolve().parents[3]
RAISED = [
    raised.exc
    for package in ("objectives", "orchestrator", "reports")
    for path in sorted((ROOT / package).rglob("*.py"))
    for raised in ast.walk(ast.parse(path.read_text()))
    if isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Call)
]


@pytest.mark.parametrize(
    ("error", "in_python", "in_flags"),
    [
        (RunError("it is taken"), "it is taken", "it is taken"),
        (RunError("it is taken", "out"), "it is taken (out=...)", "it is taken (--out)"),
        (
            RunError("choose one", "max_ratio", "knee"),
            "choose one (max_ratio=..., knee=...)",
            "choose one (--max-ratio, --knee)",
        ),
    ],
)
def test_an_error_ends_in_its_parameters(error: RunError, in_python: str, in_flags: str) -> None:
    assert str(error) == in_python
    assert error.naming(flag) == in_flags


def test_an_error_of_another_process_has_its_parameters() -> None:
    error = pickle.loads(pickle.dumps(RunError("it is taken", "out", "storage")))
    assert (error.text, error.parameters) == ("it is taken", ("out", "storage"))


def test_each_parameter_of_an_error_is_an_option() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    options = {option for own in commands for one in own.params for option in one.opts}
    flags = {
        flag(name.value)
        for error in RAISED
        for name in error.args[1:]
        if ast.unparse(error.func) in ("RunError", "UserError") and isinstance(name, ast.Constant)
    }
    assert len(flags) > 10
    assert flags <= options


def test_the_options_of_a_verb_are_the_parameters_of_its_call() -> None:
    verb = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    options = {option.name: option for option in verb.params}
    hidden = {"callbacks", "report", "command", "console"}
    parameters = inspect.signature(launch).parameters
    assert options.keys() == parameters.keys() - hidden | {"name"}
    assert {name: options[name].default for name in ("workers", "backend", "device")} == {
        name: parameters[name].default for name in ("workers", "backend", "device")
    }
    assert options["trials"].help == "Trials wanted; the study's own number by default."


def test_no_error_writes_a_parameter_or_a_flag_into_its_text() -> None:
    said = [
        text.value
        for error in RAISED
        for text in ast.walk(error)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]
    assert len(said) > 100
    assert [
        text for text in said if re.search(r"(?<![\w-])--[a-z]|(?<![\w(])\w+=\.\.\.", text)
    ] == []

"""Loading a study of a Python file that a user names: its `study`, or another by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from orchestrator.errors import RunError

if TYPE_CHECKING:
    from orchestrator.study import Study

MODULE = "maskfront_study"
"""The name under which a study file is imported."""


def load_study(path: Path, name: str = "study") -> Study:
    """Run the file and return the study in it whose variable, or whose own name, is `name`.

    Raises RunError if there is none, or if the file raises.
    """
    from orchestrator.study import Study

    module = _run(path)
    variable = getattr(module, name, None)
    study = variable if isinstance(variable, Study) else _named(module, name) or variable
    if not isinstance(study, Study):
        found = f"no name `{name}`" if study is None else f"`{name}` is a {type(study).__name__}"
        studies = [known for known, value in vars(module).items() if isinstance(value, Study)]
        remedy = (
            f"its studies are {', '.join(studies)}"
            if studies
            else "it must end in `study = Study(...)`"
        )
        raise RunError(f"study file '{path}': {found}; {remedy}")
    return study


def load_study_of(path: Path, run_name: str) -> Study:
    """Run the file and return the study in it that a run of this name was launched from.

    Raises RunError if there is none, or if the file raises.
    """
    module = _run(path)
    study = _named(module, run_name)
    if study is not None:
        return study
    names = ", ".join(f"'{study.name}'" for study in _studies(module)) or "none"
    raise RunError(f"study file '{path}': no study is named '{run_name}'; its studies: {names}")


def _studies(module: ModuleType) -> list[Study]:
    from orchestrator.study import Study

    return [value for value in vars(module).values() if isinstance(value, Study)]


def _named(module: ModuleType, name: str) -> Study | None:
    return next((study for study in _studies(module) if study.name == name), None)


def _run(path: Path) -> ModuleType:
    """The module that the file makes, which may import those beside it, as a script may.

    Raises RunError if it cannot be run, or raises.
    """
    if not path.is_file():
        raise RunError(f"study file '{path}' does not exist")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise RunError(f"study file '{path}' is no Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = _line_in(path, error)
        raise RunError(
            f"study file '{path}'{line} raises {type(error).__name__}: {error}"
        ) from error
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """Where in the file the error came from, as ", line N"."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    line = ""
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line

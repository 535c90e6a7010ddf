"""Load a study from a Python file that the user names: its variable `study`, or another."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING

from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from orchestrator.study import Study

POLISHED = "-polished"  # suffix of the name of a run of `polish`
_MODULE = "maskfront_study"  # the name under which a study file is imported


def load_study(path: str | Path, name: str = "study") -> Study:
    """Run a study file.

    Args:
        path: the file; it may import those beside it.
        name: the variable that holds the study, or the study's own name.

    Returns:
        The study of this name.

    Raises:
        RunError: if there is none, or if the file raises.
    """
    module = _run(Path(path))
    studies = _studies(module)
    study = studies.get(name) or _named(module, name)
    if study is None:
        other = getattr(module, name, None)
        problem = f"no name `{name}`" if other is None else f"`{name}` is a {type(other).__name__}"
        shown = f"its studies are {', '.join(studies)}"
        remedy = shown if studies else "it must end in `study = Study(...)`"
        raise RunError(f"study file '{path}': {problem}; {remedy}")
    return study


def launched_file(folder: Path) -> Path:
    """Find the study file that a run folder's launch.json names. Raises RunError if it cannot."""
    run = RunFolder(folder)
    launched = run.read_launch()
    if launched is None or launched.study_file is None:
        why = "its launch.json names no study file (runs of `compress` have none)"
    elif launched.inode != run.inode:  # nothing that a stranger's folder names is run unasked
        why = "this folder is a copy, and the study file that its launch.json names is not trusted"
    elif not run.is_of_this_account():
        why = "another account wrote its launch.json, and the study file named there is not trusted"
    elif launched.working_folder != os.stat(".").st_ino:  # a file here may be another one
        why = f"the study file '{launched.study_file}' was named in another working folder"
    elif not Path(launched.study_file).is_file():
        why = f"the study file '{launched.study_file}', which launch.json names, is not there"
    else:
        return Path(launched.study_file)
    raise RunError(f"'{folder}': {why}; name the file that it was launched from", "study_file")


def load_study_of(path: Path, run_name: str) -> Study:
    """Run the file and return the study from which a run of this name was launched or polished."""
    module = _run(path)
    study = _named(module, run_name) or _named(module, run_name.removesuffix(POLISHED))
    if study is not None:
        return study
    names = ", ".join(f"'{study.name}'" for study in _studies(module).values()) or "none"
    raise RunError(f"study file '{path}': no study is named '{run_name}'; its studies: {names}")


def file_of(study: Study) -> Path | None:
    """Find the file that defines a study: a study file, else the running script."""
    # There is none in a notebook, a script from a pipe, or for a study that the command made.
    file = Path(vars(_module_of(study)).get("__file__") or "")
    return file if file.is_file() and file.name != "maskfront" else None


def is_named(study: Study) -> bool:
    """Whether `load_study_of` finds the study in that file: a function may have made it."""
    return _named(_module_of(study), study.name) is not None


def _module_of(study: Study) -> ModuleType:
    module = sys.modules.get(_MODULE)
    if module is None or all(value is not study for value in vars(module).values()):
        module = sys.modules["__main__"]
    return module


def own_modules() -> list[ModuleType]:
    """Modules of the study file, if one was run, and of the files beside it that it imported."""
    study = sys.modules.get(_MODULE)
    if study is None:
        return []
    folder = Path(str(study.__file__)).resolve().parent
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    files = [(module, vars(module).get("__file__")) for module in modules]
    beside = [module for module, file in files if file and Path(file).parent == folder]
    return list(dict.fromkeys([study, *beside]))


def _studies(module: ModuleType) -> dict[str, Study]:
    from orchestrator.study import Study

    return {name: value for name, value in vars(module).items() if isinstance(value, Study)}


def _named(module: ModuleType, name: str) -> Study | None:
    return next((study for study in _studies(module).values() if study.name == name), None)


def _run(path: Path) -> ModuleType:
    """Import the file as a module. Raises RunError if it cannot be run, or raises."""
    if not path.is_file():
        raise RunError(f"study file '{path}' does not exist")
    if path.suffix != ".py":
        raise RunError(f"study file '{path}' is not a Python file (its name must end in .py)")
    file = str(path.absolute())
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    beside = str(path.resolve().parent)
    sys.path.append(beside)  # last, so that no folder of the user's takes the place of a package
    try:
        # Its loader would write bytecode, and nothing is written outside the run folder.
        exec(compile(path.read_bytes(), file, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        reason = f"{_line_in(path, error)} raises {type(error).__name__}: {error}"
        raise RunError(f"study file '{path}'{reason}") from error
    finally:
        sys.path.remove(beside)
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """Line of the file that raised the error, as ", line N"."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace = reversed(extract_tb(error.__traceback__))
    lines = (frame.lineno for frame in trace if Path(frame.filename) == path.absolute())
    return next((f", line {line}" for line in lines), "")

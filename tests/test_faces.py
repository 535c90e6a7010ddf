"""The one package that users import: its names, how little it loads, and what lies in its way."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import maskfront

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("objectives", "orchestrator", "reports")


def test_every_name_is_there() -> None:
    assert set(maskfront.__all__) <= set(dir(maskfront))
    for name in maskfront.__all__:
        thing = getattr(maskfront, name)
        assert getattr(thing, "__name__", name) == name
    with pytest.raises(AttributeError, match="module 'maskfront' has no attribute 'nonsense'"):
        maskfront.nonsense  # noqa: B018


def _settings() -> list[type[Any]]:
    """Dataclasses of settings, which users construct."""
    written = [maskfront.Study, maskfront.Task, maskfront.Teacher, maskfront.Stage]
    public = [getattr(maskfront, name) for name in maskfront.__all__]
    methods = [kind for kind in public if isinstance(kind, type) and is_dataclass(kind)]
    base = maskfront.SearchMethod
    return [*written, *(kind for kind in methods if issubclass(kind, base) and fields(kind))]


@pytest.mark.parametrize("kind", _settings(), ids=lambda kind: kind.__name__)
def test_a_misspelt_setting_is_named(kind: type[Any]) -> None:
    first = fields(kind)[0].name
    message = f"^{kind.__name__} has no setting '{first}z'; did you mean '{first}'\\?$"
    with pytest.raises(maskfront.UserError, match=message):
        kind(**{f"{first}z": 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: maskfront.launch(None, worker=2), "launch .* 'worker'; did you mean 'workers'"),
        (lambda: maskfront.compress("a", "b", minuts=2), "compress .* 'minuts'; .* 'minutes'"),
        (lambda: maskfront.Run.best(None, max_ration=1), r"Run\.best .* mean 'max_ratio'\?$"),
        (lambda: maskfront.Task.from_files("a.csv", delimeter=";"), "did you mean 'delimiter'"),
        (lambda: maskfront.Task.from_files("a.csv", trian=5), "did you mean 'train'"),
        (lambda: maskfront.Task.from_rows([], heldout_row=[]), "from_rows .* 'heldout_rows'"),
        (lambda: replace(maskfront.Teacher(checkpoint="a"), epoch=5), "did you mean 'epochs'"),
        (lambda: maskfront.Fidelity(dat=1), "Fidelity has no setting 'dat'; did you mean 'data'"),
        (lambda: maskfront.bench([], round=5), "did you mean 'rounds'"),
    ],
)
def test_a_misspelt_keyword_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(maskfront.UserError, match=message):
        call()


def test_settings_are_still_copied_and_sent_to_workers() -> None:
    method = maskfront.MaskSearch()
    assert pickle.loads(pickle.dumps(method)) == copy.deepcopy(method) == method
    assert "checkpoint" in inspect.signature(maskfront.Teacher).parameters, "as an editor shows it"


def test_type_checkers_see_each_name_as_public() -> None:
    """They take a name imported `as` itself for one that a module gives on."""
    tree = ast.parse((ROOT / "maskfront" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = [alias for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert sorted(alias.name for alias in seen) == maskfront.__all__
    assert all(alias.asname == alias.name for alias in seen)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.py")), ids=lambda p: p.stem)
def test_studies_take_all_of_ours_from_the_face(path: Path) -> None:
    modules = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    ]
    assert [module for module in modules if module.split(".")[0] in PACKAGES] == []


HEAVY = {"torch", "transformers", "datasets", "sklearn", "scipy", "pandas", "plotly", "optuna"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import maskfront", set()),
        ("import orchestrator.command.cli", set()),
        ("from maskfront import Run, RunError, load_run", {"optuna"}),
        ("from maskfront import choose", {"optuna"}),
        (
            "from maskfront import Augmentation, FisherSearch, Stage, Study, Task, Teacher",
            HEAVY - {"sklearn", "plotly"},
        ),
        ("from maskfront import launch", HEAVY - {"sklearn"}),
        ("import objectives, objectives.errors, orchestrator.errors", set()),
        (
            "import objectives.students.bert",
            {"torch", "transformers", "scipy"},
        ),  # scipy: transformers' own
    ],
)
def test_what_an_import_loads(code: str, allowed: set[str]) -> None:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert HEAVY & set(done.stdout.split()) <= allowed


def built(hook: str, project: Path, out: Path) -> zipfile.ZipFile:
    """A wheel of these packages, by a hook of the build backend that pip calls."""
    packages = ("maskfront", *PACKAGES, "studies")
    for name in ("pyproject.toml", "README.md", "LICENSE", *packages):
        (project / name).symlink_to(ROOT / name)
    build = f"from setuptools import build_meta; build_meta.{hook}({str(out)!r})"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build], cwd=project, check=True, capture_output=True
    )
    (wheel,) = out.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_loading_a_name_leaves_the_garbage_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(maskfront, "import_module", lambda _: seen.append(gc.isenabled()))
    with pytest.raises(AttributeError):
        maskfront.Study  # noqa: B018
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    """Templates, styles and scripts too, and the marks for type checkers."""
    for name in ("project", "out"):
        (tmp_path / name).mkdir()
    shipped = set(built("build_wheel", tmp_path / "project", tmp_path / "out").namelist())
    packages = ("maskfront", *PACKAGES, "studies")
    files = [file for package in packages for file in (ROOT / package).rglob("*.*")]
    wanted = {str(file.relative_to(ROOT)) for file in files if file.suffix != ".pyc"}
    assert wanted <= shipped
    assert {f"{package}/py.typed" for package in packages} | {"reports/page/page.js"} <= wanted


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Python's path that does what an editable install of these packages does."""
    project, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    built("build_editable", project, out).extractall(out)
    # The tests' own install comes after this one, and what it knows of is forgotten.
    (out / "sitecustomize.py").write_text(
        "import site, sys\n"
        f"site.addsitedir({str(out)!r})\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in str(f) or "
        f"'{out}' in sys.modules[f.__module__].__file__]\n"
    )
    return out


def run(folder: Path, installed: Path, code: str, *, module: bool = False) -> tuple[str, str]:
    """What a script of this code prints to both, where our packages are installed."""
    (folder / "job.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *(("-m", "job") if module else ("job.py",))],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


WHERE = """
from maskfront import RunError
import objectives, orchestrator, reports
print(*[package.__file__ for package in (objectives, orchestrator, reports)])
"""
IN_A_WORKER = """
from maskfront import RunError
from joblib import Parallel, delayed
def where():
    import objectives, orchestrator, reports, orchestrator.errors
    return [package.__file__ for package in (objectives, orchestrator, reports)]
if __name__ == "__main__":
    print(*Parallel(n_jobs=2)([delayed(where)()])[0])
"""


def ours(output: str) -> bool:
    found = [Path(path).resolve() for path in output.split()]
    return found == [ROOT / package / "__init__.py" for package in PACKAGES]


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize(
    "code", [WHERE, IN_A_WORKER, WHERE.replace("maskfront", "orchestrator.errors")]
)
def test_a_folder_of_the_users_does_not_win(
    installed: Path, tmp_path: Path, code: str, module: bool
) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    output, errors = run(tmp_path, installed, code, module=module)
    assert ours(output), errors
    assert errors == ""

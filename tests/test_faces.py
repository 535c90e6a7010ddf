"""The names that users import from the packages themselves, and how little that loads."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FACES = ("objectives", "orchestrator", "reports")


@pytest.mark.parametrize("package", FACES)
def test_every_name_of_a_face_is_there_and_is_no_modules(package: str) -> None:
    face = importlib.import_module(package)
    assert set(face.__all__) <= set(dir(face))
    homes = {name: getattr(face, name).__module__ for name in face.__all__ if name != "FOUR_STEPS"}
    assert {home.split(".")[0] for home in homes.values()} == {package}
    modules = {module.name for module in pkgutil.iter_modules(face.__path__)}
    assert not modules & set(face.__all__), "importing the module would hide the name"
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        face.nonsense  # noqa: B018


@pytest.mark.parametrize("package", FACES)
def test_what_mypy_sees_of_a_face_is_what_python_finds(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and not node.orelse][:1]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == importlib.import_module(package)._HOMES


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.py")), ids=lambda p: p.stem)
def test_studies_take_all_of_ours_from_the_faces(path: Path) -> None:
    modules = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    ]
    assert [module for module in modules if module.startswith(tuple(f"{f}." for f in FACES))] == []


HEAVY = {"torch", "transformers", "datasets", "sklearn", "scipy", "pandas", "plotly", "optuna"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import orchestrator, reports", set()),
        ("import orchestrator.command.cli", set()),
        ("from orchestrator import Run, RunError, load_run", {"optuna"}),
        ("from reports import choose", {"optuna"}),
        (
            "from objectives import Augmentation, FisherSearch, Stage, Task, Teacher\n"
            "from orchestrator import Study",
            HEAVY - {"sklearn", "plotly"},
        ),
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

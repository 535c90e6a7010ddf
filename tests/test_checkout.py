"""The packages under test are this checkout's, and what a user reads about it is true."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import maskfront

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ["objectives", "orchestrator", "reports", "studies"]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_the_one_of_this_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin == str(ROOT / package / "__init__.py")


def test_what_is_imported_when_asked_for_is_listed_before() -> None:
    code = (
        "import sys, maskfront; listed = set(maskfront.__all__) <= set(dir(maskfront)); "
        "sys.exit(not listed or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_direct_dependency_is_pinned() -> None:
    project = PYPROJECT["project"]
    named = {
        re.split(r"[\[<>=~! ]", requirement)[0].lower()
        for group in (project["dependencies"], *project["optional-dependencies"].values())
        for requirement in group
    }
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert named - {project["name"]} == pinned


def test_each_lower_bound_is_tested() -> None:
    """All but torch's: the index has older builds of it for CUDA alone."""
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    oldest = dict(line.split("==") for line in lines if "==" in line)
    project = PYPROJECT["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["onnx"]):
        requirement = Requirement(text)
        (low,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        tested = Version(oldest.pop(requirement.name))
        assert low == tested or (requirement.name == "torch" and low < tested), text
    assert oldest == {}


def test_the_readme_opens_with_a_picture_and_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text()[:2500]
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", opening)
    assert (ROOT / picture).stat().st_size < 100_000
    assert re.search(r"^make demo\b", opening, re.MULTILINE)
    assert re.search(r"^make test\b", opening, re.MULTILINE)


def test_the_files_that_the_map_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for room in ("objectives", "orchestrator", "reports"):
        section = text.split(f"### {room}/")[1].split("\n#")[0]
        named = re.findall(r"`(\w+(?:\.py|/))`", section)
        assert named
        missing = [name for name in named if not (ROOT / room / name).exists()]
        assert missing == []
        files = {path.name for path in (ROOT / room).glob("*.py")} - {"__init__.py", "errors.py"}
        assert files - set(named) == set()


@pytest.mark.parametrize("package", PACKAGES[:3])
def test_no_room_has_more_files_than_a_newcomer_can_take_in(package: str) -> None:
    folders = [ROOT / package, *(path.parent for path in (ROOT / package).rglob("__init__.py"))]
    crowded = {
        str(folder.relative_to(ROOT)): len(files)
        for folder in folders
        if len(files := [f for f in folder.glob("*.py") if f.name != "__init__.py"]) > 12
    }
    assert crowded == {}


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_the_pages_leads_somewhere() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^()\s]+)\)", FENCED.sub("", page.read_text()))
        if "://" not in link
    ]
    assert {page.name for page, _ in links} >= {"README.md", "tutorial.md"}
    broken = []
    for page, link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{page.name}: {link}")
    assert broken == []


def test_the_examples_import_from_the_face_alone() -> None:
    imports = [
        (page.name, node.module, alias.name)
        for page in PAGES
        for kind, block in FENCED.findall(page.read_text())
        if kind == "python"
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if node.module.split(".")[0] in (*PACKAGES, "maskfront")
    ]
    assert {page for page, _, _ in imports} >= {"README.md", "tutorial.md", "notebooks.md"}
    assert [line for line in imports if line[1] != "maskfront"] == []
    assert {name for _, _, name in imports} <= set(maskfront.__all__)


TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def test_no_public_name_is_defined_twice() -> None:
    homes: dict[str, list[Path]] = {}
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_variables_have_nouns_for_names() -> None:
    pronouns = {"own", "one", "said", "told", "there", "found", "known", "kept", "whole"}
    named = [
        (str(path), node.lineno, node.id)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in pronouns
    ]
    assert named == []


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    beginnings = ("Of ", "Those", "The same", "What ", "As ", "One ")
    documented = ast.Module, ast.ClassDef, ast.FunctionDef
    poor = [
        (str(path), text.splitlines()[0])
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node) or "")
        if text.startswith(beginnings)
    ]
    assert poor == []

"""The packages under test are this checkout's, and what a user reads about it is true."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("package", ["objectives", "orchestrator", "reports", "studies"])
def test_the_package_is_the_one_of_this_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin == str(ROOT / package / "__init__.py")


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


def test_the_readme_opens_with_a_picture_and_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text()[:1500]
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

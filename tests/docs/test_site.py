"""The documentation builds without a warning, loads nothing, and the README stays short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maskfront
from tests.docs.blocks import ROOT, blocks_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    target = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^docs:.*\n\t(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].replace("$(BIN)", str(Path(sys.executable).parent))
    built = subprocess.run(
        ["bash", "-c", f"{command} --site-dir {target}"], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    assert "INFO" in built.stderr  # a quiet build hides its warnings from --strict
    assert "WARNING" not in built.stderr
    return target


@pytest.mark.slow
def test_every_page_of_the_site_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 15
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*>")
    for page in site.rglob("*.html"):
        elements = loads.findall(page.read_text(encoding="utf-8"))
        assert len(elements) > 3
        assert [one for one in elements if re.search(r'(?:href|src)="?(?:https?:)?//', one)] == []


@pytest.mark.slow
def test_the_reference_shows_every_public_name(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    names = maskfront.__all__
    assert [name for name in names if f'id="maskfront.{name}"' not in pages] == []


@pytest.mark.slow
def test_the_reference_shows_settings_arguments_and_results(site: Path) -> None:
    page = (site / "reference" / "objectives.html").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", " ", page)
    assert 'id="maskfront.FisherSearch.cost_power"' in page
    assert re.search(r"Power of its cost", shown)
    assert re.search(r"Returns:", shown)


def test_the_readme_is_short_and_shows_a_study() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 120
    first = next(block for block in blocks_of(readme) if "Study(" in block.text)
    called = {
        node.func.id
        for node in ast.walk(ast.parse(first.text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert {"Study", "launch"} <= called
    assert first.line < 75
    assert len(first.text.splitlines()) <= 25

"""The front as a picture, and what is said where none can be drawn."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from reports.page.picture import PICTURES, front_image


def test_another_suffix_is_refused(mixed_run: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"ends in '\.gif'; use \.svg, \.png, \.pdf or \.html"):
        front_image([mixed_run], tmp_path / "front.gif")


def test_a_figure_as_html_needs_no_browser(mixed_run: RunRecord, tmp_path: Path) -> None:
    page = front_image([mixed_run], tmp_path / "new" / "front.html")
    assert "<html" in page.read_text()


def test_a_missing_kaleido_is_named(
    mixed_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.page.picture.find_spec", {}.get)
    with pytest.raises(RunError, match=r"pip install .* '\.\[image\]'"):
        front_image([mixed_run], tmp_path / "front.svg")
    assert not (tmp_path / "front.svg").exists()


def test_a_missing_browser_is_named(
    mixed_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = pytest.importorskip("choreographer.cli.defaults", reason="NOT TESTED: no kaleido")
    if defaults.default_download_path.exists():
        pytest.skip("NOT TESTED: kaleido has a browser of its own here")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-browser"))
    with pytest.raises(RunError, match="set BROWSER_PATH to the executable"):
        front_image([mixed_run], tmp_path / "front.svg")


@pytest.mark.slow
def test_a_browser_that_hangs_is_given_up(
    mixed_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido", reason="NOT TESTED: no kaleido; pip install 'maskfront[image]'")
    started = tmp_path / "started"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho >> {started}\nexec sleep 20\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(browser))
    monkeypatch.setattr("reports.page.picture._SECONDS", 5)
    with pytest.raises(RunError, match="a browser that starts"):
        front_image([mixed_run], tmp_path / "front.svg")
    assert len(started.read_text()) == 2, "one more attempt"


@pytest.mark.parametrize(
    "suffix", [PICTURES[0], *(pytest.param(s, marks=pytest.mark.slow) for s in PICTURES[1:])]
)
def test_picture_is_small_and_on_white(
    mixed_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    pytest.importorskip("kaleido", reason="NOT TESTED: no kaleido; pip install 'maskfront[image]'")
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    browser = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"NOT TESTED: the picture; no BROWSER_PATH, and none of {', '.join(names)}")
    monkeypatch.setenv("BROWSER_PATH", browser)
    target = tmp_path / "pictures" / f"front{suffix}"
    assert front_image([mixed_run], target) == target
    content = target.read_bytes()
    if suffix == ".svg":
        text = content.decode()
        assert 'width="760" height="440"' in text
        assert "unpruned: 0.900" in text
        assert "rgb(255, 255, 255)" in text
    elif suffix == ".pdf":
        assert content.startswith(b"%PDF-")
    else:
        assert content.startswith(b"\x89PNG")
        assert [int.from_bytes(content[at : at + 4]) for at in (16, 20)] == [760, 440]

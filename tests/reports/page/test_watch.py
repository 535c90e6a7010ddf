"""The page of a run that is under way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runs.run_folder import RunFolder
from reports.page.page import write_report
from reports.page.watch import watch_report
from tests.reports.conftest import many_run, store_run


def test_the_page_is_written_whenever_the_run_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at four times: before and after it grew, and when its page cannot be written."""
    folder = RunFolder(tmp_path / "run")
    folder.artifacts.mkdir(parents=True)
    store_run(folder, many_run(2))
    written: list[str] = []
    looks = 0

    def seen(page: Path) -> None:
        written.append(page.read_text(encoding="utf-8"))

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            folder.database.unlink()
            for trial in (tmp_path / "run" / "trials").iterdir():
                trial.rename(tmp_path / trial.name)
            store_run(folder, replace(many_run(4), name="many"))
        if looks == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_report([folder.path], folder.report, seen, wait)
    assert [page.count("Card of trial 3") > 0 for page in written] == [False, True]
    assert all('id="follow"' in page for page in written)


def test_a_reader_never_sees_half_a_page(
    tmp_path: Path, make_many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is moved into the page's place is whole, and stands beside it until then."""
    target = tmp_path / "report.html"
    write_report([make_many(4)], target)
    old = target.read_text(encoding="utf-8")
    moved: list[str] = []
    replace_file = Path.replace

    def watched(self: Path, other: Path) -> Path:
        assert target.read_text(encoding="utf-8") == old
        moved.append(self.read_text(encoding="utf-8"))
        return replace_file(self, other)

    monkeypatch.setattr(Path, "replace", watched)
    write_report([make_many(8)], target)
    (new,) = moved
    assert new.rstrip().endswith("</html>")
    assert target.read_text(encoding="utf-8") == new
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

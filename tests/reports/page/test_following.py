"""Page and dashboard of a launch under way: a share of its time, and the last state at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna_dashboard import get_note

from orchestrator.runs.records import RunRecord, load_optuna_study, read_run
from orchestrator.runs.run_folder import RunFolder
from reports import overlay
from reports.page import following
from reports.page.following import Following
from reports.pareto import pareto_view
from tests.reports.conftest import many_run, store_run


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("fails", [False, True])
def test_what_takes_longer_than_its_share_waits_for_a_later_population(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A page takes 2 seconds, a population 12: so many seconds are allowed in 40, 80 and 120. One
    that cannot be written has taken its time too."""
    clock = Clock()
    written: list[float] = []

    def write(self: Following, run: object, live: bool) -> None:
        written.append(clock.now)
        clock.now += 2
        if fails:
            raise OSError("no space")

    monkeypatch.setattr(Following, "_write", write)
    follow = Following("maskfront run study.py", "", clock=clock)
    for population in range(1, 13):
        clock.now = 12.0 * population
        try:
            follow(many_run(2))
        except OSError:
            assert fails
    assert written == [12.0, 48.0, 84.0, 120.0]


def test_a_report_that_fails_is_a_note_and_no_error_of_a_finished_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    notes: list[str] = []
    run = many_run(2, folder=tmp_path)
    monkeypatch.setattr(following, "write_report", refuse)
    follow = Following("maskfront run study.py", "", note=notes.append)
    follow.end(run)
    assert notes == [
        "the report could not be written (OSError: [Errno 28] No space left on device); the run is "
        f"complete: maskfront report {tmp_path} writes it again"
    ]
    with pytest.raises(OSError, match="No space"):
        follow(run)  # the launch notes it, and calls again
    follow.cut_short()
    assert len(notes) == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_last_state_is_written_and_no_page_says_that_the_study_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    folder = RunFolder(tmp_path / "run")
    store_run(folder, many_run(4))
    run = read_run(folder.path)
    sorted_runs: list[RunRecord] = []
    monkeypatch.setattr(
        overlay, "pareto_view", lambda run: [sorted_runs.append(run), pareto_view(run)][1]
    )
    monkeypatch.setattr(following, "_SHARE", 0.0)
    follow = Following("maskfront run study.py", "study = Study()")
    follow(run)
    assert 'id="follow"' in folder.report.read_text(encoding="utf-8")
    assert sorted_runs == [run], "page, notes and figure share what takes longest"
    if interrupted:
        follow.cut_short()
    else:
        follow.end(run)
    page = folder.report.read_text(encoding="utf-8")
    assert 'id="follow"' not in page
    assert "study = Study()" in page
    assert get_note(load_optuna_study(folder.path)).startswith("**")

"""A launch with a timeout: no more trials begin, and the next launch goes on."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from maskfront import RunError, Study
from orchestrator.workers import limits
from orchestrator.workers.limits import begin_launch, why_it_ends
from tests.launching import run_study
from tests.orchestrator.workers.test_launch import scripted


def test_no_trial_begins_after_it_and_the_next_launch_goes_on(study: Study, tmp_path: Path) -> None:
    tried = replace(scripted(study, "result", "result"), trials=2, population=1)
    ended = run_study(tried, tmp_path / "run", timeout=1e-9)
    assert ended.trials == ()
    again = run_study(tried, tmp_path / "run", timeout=3600)
    assert len(again.finished) == 2


@pytest.mark.parametrize(("timeout", "jump"), [(3600, 7200), (1e-9, -7200)])
def test_a_clock_that_is_set_meanwhile_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, timeout: float, jump: float
) -> None:
    """Other machines have nothing but that clock."""
    outer, over, wall = optuna.create_study(), "the time is up", time.time
    begin_launch(outer, timeout)
    now = why_it_ends(outer, None)
    assert now == (over if timeout < 1 else None)
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    assert why_it_ends(outer, None) == now
    monkeypatch.setattr(limits, "this_machine", lambda: "another")
    assert why_it_ends(outer, None) == (over if now is None else None)


@pytest.mark.slow
def test_several_workers_heed_it(study: Study, tmp_path: Path) -> None:
    from orchestrator.workers.loop import LaunchOptions
    from orchestrator.workers.worker_pool import launch_workers

    options = LaunchOptions(out=tmp_path / "run", device="cpu", workers=2, timeout=1e-9)
    assert launch_workers(study, options).finished == []


def test_a_timeout_of_nothing_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"must be seconds above 0 \(timeout=\.\.\.\)$"):
        run_study(study, tmp_path / "run", timeout=0)

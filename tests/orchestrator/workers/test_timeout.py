"""A launch with a timeout: no more trials begin, and the next launch goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from maskfront import RunError, Study
from tests.launching import run_study
from tests.orchestrator.workers.test_launch import scripted


def test_no_trial_begins_after_it_and_the_next_launch_goes_on(study: Study, tmp_path: Path) -> None:
    tried = replace(scripted(study, "result", "result"), trials=2, population=1)
    ended = run_study(tried, out=tmp_path / "run", device="cpu", timeout=1e-9)
    assert ended.trials == ()
    again = run_study(tried, out=tmp_path / "run", device="cpu", timeout=3600)
    assert len(again.finished) == 2


@pytest.mark.slow
def test_several_workers_heed_it(study: Study, tmp_path: Path) -> None:
    from orchestrator.workers.launch_options import LaunchOptions
    from orchestrator.workers.worker_pool import launch_workers

    options = LaunchOptions(out=tmp_path / "run", device="cpu", workers=2, timeout=1e-9)
    assert launch_workers(study, options).finished == []


def test_a_timeout_of_nothing_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"must be seconds above 0 \(timeout=\.\.\.\)$"):
        run_study(study, out=tmp_path / "run", timeout=0)

"""What ends a launch or a trial early: a front that has stopped growing, a search without end."""

from __future__ import annotations

import fcntl
import io
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from rich.console import Console

from maskfront import RunError, Study
from objectives.cache import kernel_lock
from orchestrator.runs.records import FinishedTrial, pareto_front
from orchestrator.workers import limits
from orchestrator.workers.limits import begin_launch, last_growth, why_it_ends
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.progress import LaunchProgress, TrialTimeoutError
from orchestrator.workers.worker_pool import launch_workers
from reports.figures.outer_loop import area
from tests.launching import run_study
from tests.orchestrator.methods import paced, scripted
from tests.orchestrator.runs.test_records import trial


def test_the_last_growth_is_that_of_the_hypervolume() -> None:
    """Against the area under the front, on costs and metrics of which many are equal."""
    dice = np.random.default_rng(0)
    for _ in range(50):
        rows: list[FinishedTrial] = []
        for number in dice.permutation(8).tolist():
            metric, cost = dice.integers(-1, 5) / 4, int(dice.integers(1, 6)) * 250
            target = 0.01 if dice.random() < 0.2 else None
            rows.append(replace(trial(number, metric, cost, target=target), ended=float(len(rows))))
        volumes = [0.0]
        for count in range(1, 9):
            front = [(one.result.ratio, one.result.worth) for one in pareto_front(rows[:count])]
            volumes.append(area(front, 0.0, 1.0))
        grown = [n for n in range(1, 9) if volumes[n] > volumes[n - 1] + 1e-12]
        assert last_growth(rows[::-1]) == max(grown, default=0)


def test_of_divergences_any_adds_to_the_volume() -> None:
    def far(number: int, divergence: float, cost: int) -> FinishedTrial:
        one = trial(number, 0.5, cost)
        result = replace(one.result, objective="divergence", divergence=divergence)
        return replace(one, result=result, ended=float(number))

    assert last_growth([far(0, 90.0, 500), far(1, 91.0, 500)]) == 1
    assert last_growth([far(0, 90.0, 500), far(1, 0.1, 1000)]) == 1
    assert last_growth([far(0, 90.0, 500), far(1, 91.0, 400)]) == 2


def test_a_launch_stops_when_the_front_no_longer_grows(study: Study, tmp_path: Path) -> None:
    heads = [3, 2, 2, 2, 2, 2, 1]
    patient = paced(study, *((kept, 0.0) for kept in heads), patience=2)

    def launch(study: Study) -> tuple[int, str]:
        said = Console(file=io.StringIO(), width=200)
        run = run_study(study, tmp_path / "run", console=said)
        return len(run.finished), said.file.getvalue()  # type: ignore[attr-defined]

    finished, said = launch(patient)
    assert finished == 4, "the second was the last that grew it"
    (line,) = [line for line in said.splitlines() if "patience" in line]
    assert line == (
        "the front has not grown for 2 finished trials (Study.patience): 4 of 7 trials are "
        "finished; launch again to go on"
    )
    assert launch(patient)[0] == 6, "as many again"
    assert launch(replace(patient, patience=None))[0] == 7


@pytest.mark.slow
def test_several_workers_have_one_patience(study: Study, tmp_path: Path) -> None:
    patient = paced(study, *[(4, 0.0)] * 12, patience=3)
    options = LaunchOptions(out=tmp_path / "run", device="cpu", workers=2)
    finished = launch_workers(patient, options).finished
    assert 3 <= len(finished) <= 4, "another may be at work when the third is finished"


def test_a_trial_that_takes_too_long_fails_alone_and_the_study_goes_on(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [(3, 0.0), (3, 100.0), (2, 100.0), (2, 0.0), (1, 0.0)]
    timed = paced(study, *asked, trial_timeout=2, population=3, trials=3)
    run = run_study(timed, tmp_path / "run")
    states = ["finished", "failed", "failed", "finished", "finished"]
    assert [one.state for one in run.trials] == states
    assert {one.failure for one in run.trials[1:3]} == {
        "its search took longer than 2 seconds (Study.trial_timeout)"
    }
    assert "start again" not in capsys.readouterr().out, "no half of them is tried again"
    assert max(one.seconds or 0.0 for one in run.trials) < 50


def test_a_search_has_its_time_beside_that_in_which_it_waits_for_another(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0

    def wait(*_: int) -> None:
        nonlocal clock
        clock += 100

    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(fcntl, "flock", wait)
    with LaunchProgress(study, Console(quiet=True)) as progress:
        progress.search(10)
        clock += 9
        with kernel_lock(tmp_path / "lock"):
            progress.begin("learn", 1)
        clock += 2
        with pytest.raises(TrialTimeoutError):
            progress.begin("learn", 1)


def test_trials_that_all_take_too_long_end_the_launch(study: Study, tmp_path: Path) -> None:
    timed = paced(study, *[(4, 20.0)] * 4, trial_timeout=0.01)
    with pytest.raises(RunError, match=r"2 trials in a row failed; .* longer than 0\.01 seconds"):
        run_study(timed, tmp_path / "run")


def test_no_trial_begins_after_a_timeout(study: Study, tmp_path: Path) -> None:
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
    optuna_study, over, wall = optuna.create_study(), "the time is up", time.time
    begin_launch(optuna_study, timeout)
    now = why_it_ends(optuna_study, None)
    assert now == (over if timeout < 1 else None)
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    assert why_it_ends(optuna_study, None) == now
    monkeypatch.setattr(limits, "this_machine", lambda: "another")
    assert why_it_ends(optuna_study, None) == (over if now is None else None)


@pytest.mark.slow
def test_several_workers_heed_a_timeout(study: Study, tmp_path: Path) -> None:
    options = LaunchOptions(out=tmp_path / "run", device="cpu", workers=2, timeout=1e-9)
    assert launch_workers(study, options).finished == []


def test_a_timeout_of_nothing_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"must be seconds above 0 \(timeout=\.\.\.\)$"):
        run_study(study, tmp_path / "run", timeout=0)

"""What was told is there after a power cut: a disk is an image in a file, which is copied without a
sync while a study writes to it."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.runs.answers import read_rows
from orchestrator.runs.records import load_optuna_study, read_run
from orchestrator.runs.run_folder import RunFolder
from tests.chaos.quick import BUSY
from tests.chaos.test_chaos import KILLS, SEED, WANTED, check_trial, study_file
from tests.command_line import COMMAND
from tests.waiting import wait_for

__all__ = ["study_file"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The disk of an image; what it needs of the machine is asked for loudly."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NOT TESTED: power cuts, which need root and loop devices: {done.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An empty ext4."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("NOT TESTED: power cuts; there is no mkfs.ext4")
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", path], check=True)
    return path


def told(run: Path) -> set[int]:
    """The numbers of the trials with a result."""
    trials = load_optuna_study(run).get_trials(deepcopy=False)
    return {trial.number for trial in trials if trial.state is TrialState.COMPLETE}


@contextmanager
def launched(study: Path, disk: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "run", str(study), "--out", str(disk / "run"), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_what_was_told_survives_power_cuts_and_the_study_goes_on(
    study_file: Path, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy").mkdir()
    monkeypatch.setenv(BUSY, str(tmp_path / "busy"))
    cuts: list[tuple[Path, set[int]]] = []

    def cut(run: Path) -> None:
        known = told(run)
        cuts.append((image.with_name(f"cut-{len(cuts)}"), known))
        shutil.copyfile(image, cuts[-1][0])

    with mounted(image, tmp_path / "disk") as disk, launched(study_file, disk) as process:
        run = RunFolder(disk / "run")
        wait_for("the first trial", lambda: run.trial(0).exists() or process.poll())
        for moment in sorted(random.Random(SEED).sample(range(1, WANTED), KILLS)):
            wait_for(f"{moment} trials", lambda m=moment: len(told(run.path)) >= m)
            process.send_signal(signal.SIGSTOP)  # a copy is not made in a moment
            cut(run.path)
            process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
        cut(run.path)
    assert cuts[-1][1] == set(range(WANTED))
    for place, (copy, known) in enumerate(cuts):
        with mounted(copy, tmp_path / f"disk-{place}") as disk:
            check(disk / "run", known)
            if place == 0:
                with launched(study_file, disk) as process:
                    assert process.wait() == 0
                assert len(told(disk / "run")) == WANTED
                check(disk / "run", known | told(disk / "run"))


def check(run: Path, known: set[int]) -> None:
    """These trials are there, and whole."""
    study = load_optuna_study(run)
    trials = study.get_trials(deepcopy=False)
    assert known <= told(run)
    for number in known:
        check_trial(study, run, trials[number])
    assert read_rows(read_run(run)) is not None

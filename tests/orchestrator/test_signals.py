"""A launch ends when it is asked to, and not because nobody looks at it any more."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest

from maskfront import Study, launch
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome
from orchestrator.runs.records import RunRecord, load_optuna_study, read_run
from orchestrator.signals import check_interrupted, interruptible
from tests.command_line import COMMAND
from tests.orchestrator.methods import Scripted, scripted
from tests.waiting import wait_for

WriteStudy = Callable[..., Path]


@pytest.fixture(autouse=True)
def _excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


class Finalised:
    """Ctrl-C comes while it is finalised, where Python prints an error and goes on."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_of_a_finaliser_is_raised_and_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(KeyboardInterrupt, match="again"), interruptible("again", always=True):
        Finalised()
    assert printed == []
    assert sys.unraisablehook == printed.append


def signalled(number: int) -> None:
    """A signal, in code that catches whatever it raises."""
    with suppress(BaseException):
        os.kill(os.getpid(), number)
        threading.Event().wait(5)


@dataclass(frozen=True, kw_only=True)
class Deaf(Scripted):
    """Catches Ctrl-C in the middle of its search, as some libraries do."""

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        signalled(signal.SIGINT)
        yield from super().search(members, problem, seed=seed, progress=progress)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_callback_catches_ends_the_launch(study: Study, tmp_path: Path, number: int) -> None:
    seen: list[int] = []

    def deaf(record: RunRecord) -> None:
        seen.append(len(record.trials))
        signalled(number)

    study = scripted(study, *["result"] * 3, population=1)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match="launch again to go on"):
        launch(study, out=tmp_path / "run", device="cpu", report=False, callbacks=[deaf])
    assert seen == [1]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    again = launch(study, out=tmp_path / "run", device="cpu", report=False)
    assert [trial.state for trial in again.trials] == ["finished"] * 3


def test_what_a_method_catches_ends_it_at_its_next_step(study: Study, tmp_path: Path) -> None:
    study = replace(scripted(study, "result", "result", population=1), method=Deaf())
    with pytest.raises(KeyboardInterrupt):
        launch(study, out=tmp_path / "run", device="cpu", report=False)
    assert [trial.failure for trial in read_run(tmp_path / "run").trials] == ["interrupted"]


def test_what_is_caught_at_the_very_end_is_raised_there() -> None:
    with pytest.raises(KeyboardInterrupt, match="so far"), interruptible("so far"):
        signalled(signal.SIGTERM)
    check_interrupted()


def test_handlers_of_the_program_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        with interruptible(""):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


def test_a_script_that_is_interrupted_shows_one_line() -> None:
    script = (
        "import os, signal\n"
        "from orchestrator.signals import interruptible\n"
        "@interruptible('launch again to go on')\n"
        "def launch(deep):\n"
        "    launch(deep - 1) if deep else os.kill(os.getpid(), signal.SIGINT)\n"
        "launch(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == "maskfront: interrupted; launch again to go on\n"
    assert done.returncode == -signal.SIGINT


_TALKS = """
import signal, sys, time
from rich.console import Console
from orchestrator.signals import unattended
with unattended():
    print("first", flush=True)
    signal.sigtimedwait({signal.SIGUSR1}, 20)
    for _ in range(3):
        Console().print("more " * 20_000)
        print("an error", file=sys.stderr, flush=True)
open(sys.argv[1], "w").write("to the end")
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_nobody_need_read_what_a_launch_prints(tmp_path: Path, terminal: bool) -> None:
    """Its reader has ended, as in `| head`, or its terminal is closed."""
    here, there = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _TALKS, str(tmp_path / "end")],
        stdout=there,
        stderr=there,
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}),
    )
    os.close(there)
    assert os.read(here, 5) == b"first"
    os.close(here)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    assert process.wait(timeout=300) == 0
    assert (tmp_path / "end").read_text() == "to the end"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_launch_goes_on_when_head_has_seen_enough(
    write_study: WriteStudy, tmp_path: Path, workers: int
) -> None:
    asked = ["run", str(write_study()), "--out", "run", "--device", "cpu", "--workers", workers]
    launched = subprocess.Popen(
        [*COMMAND, *map(str, asked)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launched.stdout is not None
    assert launched.stderr is not None
    assert launched.stdout.readline()
    launched.stdout.close()
    with launched.stderr:
        assert launched.wait(timeout=300) == 0, launched.stderr.read()
        assert launched.stderr.read() == ""
    assert {trial.state for trial in read_run(tmp_path / "run").trials} == {"finished"}
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_in_the_terminal_of_a_script_is_one_line(
    write_study: WriteStudy, tmp_path: Path, workers: int
) -> None:
    """Each process of the foreground gets it."""
    script = write_study(epochs=500)
    call = f"launch(study, workers={workers}, device='cpu', out='run')"
    script.write_text(
        f"{script.read_text()}\nfrom maskfront import launch\n\n"
        f"if __name__ == '__main__':\n    {call}\n"
    )
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            wait_for("a trial", lambda: _searching(tmp_path / "run"))
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=300) == -signal.SIGINT
        finally:
            process.kill()
            process.wait()
    assert (tmp_path / "errors").read_text() == (
        "maskfront: interrupted; finished trials are kept, launch again to go on\n"
    )
    assert {trial.failure for trial in read_run(tmp_path / "run").trials} == {"interrupted"}


def _searching(folder: Path) -> bool:
    try:
        trials = load_optuna_study(folder).get_trials(deepcopy=False)
    except Exception:  # it is not there yet, or being made
        return False
    return any("population" in trial.user_attrs for trial in trials)

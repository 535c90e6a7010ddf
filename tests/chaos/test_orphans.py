"""No process outlives a launch that is killed, whatever its workers do at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.quick import BUSY
from tests.chaos.test_chaos import _STUDY
from tests.command_line import COMMAND
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
    pytest.mark.timeout(600),
]

GONE = 60.0
"""Seconds after which none is left."""


MARK = "STARTED_BY_TEST"


def alive(mark: str) -> set[int]:
    """The processes that have this mark in their environment: a launch, and all that it started."""
    found = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or it has ended meanwhile
            if f"{MARK}={mark}\0".encode() in environment.read_bytes():
                found.add(int(environment.parent.name))
    return found


def start(mark: str, *command: str, **options: Any) -> subprocess.Popen[str]:
    """A launch with a mark."""
    environment = {**os.environ, MARK: mark, **options.pop("env", {})}
    return subprocess.Popen(command, text=True, env=environment, **options)


def kill_and_look(launch: subprocess.Popen[str], mark: str) -> None:
    """Kill the launch; all that it has started ends soon."""
    assert alive(mark) > {launch.pid}
    launch.send_signal(signal.SIGKILL)
    launch.wait()
    try:
        wait_for("the end of all that a launch started", lambda: not alive(mark), GONE)
    finally:
        for left in alive(mark):
            os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_worker_that_heeds_no_signal_dies_with_its_launch(platform: str, tmp_path: Path) -> None:
    """On Linux by the kernel, elsewhere by its own look."""
    script = (
        "import os, signal, sys, time\n"
        "from orchestrator.signals import begin_worker\n"
        f"sys.platform = {platform!r}\n"
        "begin_worker(os.getppid())\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\n"
    mark = str(tmp_path)
    launch = start(mark, sys.executable, "-c", launcher, script, stdout=subprocess.PIPE)
    assert launch.stdout is not None
    with launch.stdout:
        assert launch.stdout.readline() == "ready\n"
        kill_and_look(launch, mark)


def starting(busy: Path) -> bool:
    """Python, the tracker of joblib, and the first of two workers, which load torch much later."""
    return len(alive(str(busy))) >= 3


def training(busy: Path) -> bool:
    return any(path.name.isdigit() for path in busy.iterdir())


def scoring(busy: Path) -> bool:
    return any(path.name.startswith("scoring") for path in busy.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("moment", [starting, training, scoring])
def test_no_worker_outlives_a_launch_that_is_killed(
    moment: Callable[[Path], bool], tmp_path: Path, tiny_data: Path, tiny_bert: str
) -> None:
    method = "Quick(scoring=300)" if moment is scoring else "Quick(pause=300)"
    study = _STUDY.format(data=str(tiny_data), checkpoint=tiny_bert, wanted=4)
    (tmp_path / "study.py").write_text(study.replace("Quick()", method))
    busy = tmp_path / "busy"
    busy.mkdir()
    launch = start(
        str(busy),
        *(*COMMAND, "run", "study.py", "--workers", "2", "--device", "cpu", "--out", "run"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={BUSY: str(busy), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
    )
    try:
        wait_for(moment.__name__, lambda: moment(busy))
        kill_and_look(launch, str(busy))
    finally:
        launch.kill()
        launch.wait()

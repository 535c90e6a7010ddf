"""Workers of a quick study that are killed at random, as the tests of this folder start them.

    python -m tests.chaos.driver STUDY.py OUT URL --kills 20 --seed 0

One process loads torch and forks a worker in milliseconds; none of its own threads or connections
live when it does. It writes "half" when half of the kills are done, and ends when the study has.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sklearn.feature_extraction.text
import sklearn.linear_model
import sklearn.model_selection
import sklearn.multiclass
import sklearn.svm  # noqa: F401 - here, else each fork would load these
from rich.console import Console

from objectives.device import quiet_libraries
from orchestrator.errors import RunError
from orchestrator.study import Study
from orchestrator.study_file import load_study
from orchestrator.workers.loop import LaunchOptions, opened, work
from tests.chaos.quick import BUSY

WORKERS = 4
_FULL = 40_000
"""Bytes to which the files of one worker may grow: its disk is full before its model is."""


def forked(job: Callable[[], object]) -> int:
    """Do the job in a process of its own; its exit code is 3 if it ended with a RunError."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        job()
        code = 0
    except RunError as error:
        code = 3
        sys.stderr.write(f"{os.getpid()}: {error}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Chaos:
    """The workers of a study, those at work and how the others ended."""

    def __init__(self, study: Study, place: dict[str, Any]):
        self.study, self.place = study, place
        self.busy = Path(os.environ[BUSY])
        self.alive: set[int] = set()
        self.codes: list[int] = []

    def start(self) -> None:
        """One more worker."""
        self.alive.add(forked(lambda: work(self.study, **self.place)))

    def start_with_a_full_disk(self) -> None:
        """One more, whose files cannot grow."""

        def job() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, _FULL))
            work(self.study, **self.place)

        self.alive.add(forked(job))

    def look(self) -> None:
        """Replace workers that have ended before the study did."""
        for pid in list(self.alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.alive.remove(pid)
                self.codes.append(os.waitstatus_to_exitcode(status))
                if self.codes[-1]:  # its disk was full, or its server away for too long
                    self.start()

    def kill_one(self, dice: random.Random) -> bool:
        """Kill one that has begun to search; False if there is none."""
        at_work = [pid for pid in sorted(self.alive) if (self.busy / str(pid)).exists()]
        if not at_work:
            return False
        victim = dice.choice(at_work)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        self.alive.remove(victim)
        self.start()
        return True


def main() -> None:
    """Open the study, kill and replace workers, wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    quiet_libraries()
    study = load_study(asked.study)

    def open_it() -> None:
        options = LaunchOptions(out=asked.out, storage=asked.url)
        with opened(*options.applied(study), options, "cpu", print):
            pass

    assert os.waitpid(forked(open_it), 0)[1] == 0
    silent = Console(quiet=True)
    place = {"out": asked.out, "device": "cpu", "storage": asked.url, "console": silent}
    chaos, dice, kills = Chaos(study, place), random.Random(asked.seed), 0
    for _ in range(WORKERS):
        chaos.start()
    while chaos.alive:
        time.sleep(dice.uniform(0.0, 0.3))
        chaos.look()
        if kills < asked.kills and chaos.kill_one(dice):
            kills += 1
            if kills == max(1, asked.kills // 2):
                chaos.start_with_a_full_disk()
                sys.stdout.write("half\n")
                sys.stdout.flush()
    sys.stdout.write(f"{kills} kills; workers ended with {sorted(chaos.codes)}\n")


if __name__ == "__main__":
    main()

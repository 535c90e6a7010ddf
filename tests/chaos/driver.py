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

from objectives.device import quiet_libraries
from orchestrator.errors import RunError
from orchestrator.loop import as_asked, opened, work
from orchestrator.study_file import load_study
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


def main() -> None:
    """Open the study, kill and replace workers, wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    quiet_libraries()
    study = load_study(asked.study)
    busy = Path(os.environ[BUSY])
    place = {"out": asked.out, "device": "cpu", "storage": asked.url}

    def open_it() -> None:
        with opened(*as_asked(study, None, None, asked.out), asked.url, "cpu"):
            pass

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, _FULL))
        work(study, **place)

    def start() -> int:
        return forked(lambda: work(study, **place))

    assert os.waitpid(forked(open_it), 0)[1] == 0
    alive = {start() for _ in range(WORKERS)}
    codes: list[int] = []
    kills = 0
    while kills < asked.kills:
        time.sleep(dice.uniform(0.0, 0.3))
        collect(alive, codes)
        if not alive:
            break
        at_work = [pid for pid in sorted(alive) if (busy / str(pid)).exists()]
        if not at_work:
            continue
        victim = dice.choice(at_work)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        alive.remove(victim)
        alive.add(start())
        kills += 1
        if kills == asked.kills // 2:
            alive.add(forked(fill_the_disk))
            sys.stdout.write("half\n")
            sys.stdout.flush()
    while alive:
        time.sleep(0.05)
        collect(alive, codes)
    sys.stdout.write(f"{kills} kills; workers ended with {sorted(codes)}\n")


def collect(alive: set[int], codes: list[int]) -> None:
    """Take note of the workers that have ended by themselves."""
    for pid in list(alive):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            alive.remove(pid)
            codes.append(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()

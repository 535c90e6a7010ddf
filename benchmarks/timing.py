"""How a step is timed: many between two looks at the clock, after a few that warm up.

Each look waits for the device. Between two the host runs ahead of it, as it does in a real trial.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch

from objectives.progress import SilentProgress

WARM_UP = {"cpu": 1, "cuda": 5}
"""Steps that are not timed, by the kind of the device."""
STEPS = {"cpu": 4, "cuda": 30}
"""Steps that are, where nobody says how many."""

Now = Callable[[], float]
"""Seconds since some moment, when the device has done its work."""


def kind_of(device: str) -> str:
    """Of "cuda:0" it is "cuda"."""
    return torch.device(device).type


def clock(device: str, *, processor: bool = False) -> Now:
    """The time, or that of the processor alone."""

    def now() -> float:
        if kind_of(device) == "cuda":
            torch.cuda.synchronize(device)
        return time.process_time() if processor else time.perf_counter()

    return now


class EnoughError(Exception):
    """What was to be measured is measured."""


def until_enough(search: Iterable[object]) -> None:
    """Search until its `Progress` has had enough."""
    with suppress(EnoughError):
        for _ in search:
            pass


class Stopwatch(SilentProgress):
    """A `Progress` that times steps of one stage, then ends the search."""

    def __init__(self, stage: str, steps: int, warm_up: int, now: Now):
        self.stage, self.now = stage, now
        self.first, self.last = warm_up, warm_up + steps
        self.at_work = False
        self.taken = 0
        self.times: list[float] = []

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        """Other stages, and what is made before, are not of interest."""
        self.at_work = stage == self.stage

    def advance(self) -> None:
        """Look at the clock before the first of the timed steps and after the last."""
        if not self.at_work:
            return
        self.taken += 1
        if self.taken in (self.first, self.last):
            self.times.append(self.now())
        if self.taken == self.last:
            raise EnoughError

    @property
    def seconds(self) -> float:
        """Of one step."""
        assert self.taken == self.last, f"{self.taken} steps, not {self.last}"
        return (self.times[1] - self.times[0]) / (self.last - self.first)


def seconds_of(step: Callable[[], None], steps: int, warm_up: int, now: Now) -> float:
    """Of one of these."""
    for _ in range(warm_up):
        step()
    started = now()
    for _ in range(steps):
        step()
    return (now() - started) / steps


def describe(device: str) -> str:
    """The name of the processor that computes."""
    if kind_of(device) == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.processor()])[0]}, {os.cpu_count()} cores"

"""Progress bars of a launch: the study, the population, the stage."""

import math
import time
from typing import Self

from rich import progress
from rich.console import Console

from objectives import cache
from orchestrator.signals import check_interrupted
from orchestrator.study import Study
from orchestrator.terminal import say

_DAY = 86400.0  # seconds


def _at_work() -> float:
    """Seconds of a clock that stands while this process waits for what another makes."""
    return time.monotonic() - cache.seconds_waited


class TrialTimeoutError(Exception):
    """Raised when a search exceeds the time of a trial."""


class LaunchProgress:
    """Three bars, and the `Progress` of the contract of a search method. Where the output is no
    terminal, each stage and each trial is one line instead."""

    def __init__(self, study: Study, console: Console | None = None, speaker: str = ""):
        """`speaker` begins each line, where several workers share a terminal."""
        console = console or Console()
        self._console, self._speaker = console, speaker and f"{speaker}: "
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_DAY,  # trials may lie minutes apart
            disable=not console.is_terminal or bool(speaker),
        )
        self._limit = self._until = math.inf  # seconds of a search; when this one has had them
        self._study = self._bars.add_task(f"study {study.name}", total=study.trials)
        self._population = self._bars.add_task("prepare", total=None)
        self._stage = self._bars.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def finished(self, trials: int) -> None:
        """Show the number of finished trials, of all workers."""
        self._bars.update(self._study, completed=trials)

    def population(self, numbers: list[int]) -> None:
        """Show that these trials start as one population."""
        first, last = numbers[0], numbers[-1]
        if last - first == len(numbers) - 1:
            name = f"trial {first}" if first == last else f"trials {first} to {last}"
        else:
            name = f"trials {', '.join(map(str, numbers))}"
        self._bars.reset(self._population, description=name, total=len(numbers))
        self._line(name)

    def trial_ended(self, line: str, *, counts: bool) -> None:
        """Show the end of a trial, its result in `line`; `counts` if it counts as finished."""
        self._bars.advance(self._population)
        if counts:
            self._bars.advance(self._study)
        self.note(line)

    def note(self, line: str) -> None:
        say(self._console, f"{self._speaker}{line}")

    def search(self, limit: float | None) -> None:
        """Start the clock of a search: steps after `limit` seconds raise TrialTimeoutError."""
        self._limit = math.inf if limit is None else limit
        self._until = _at_work() + self._limit

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        self._check_time()
        self._bars.reset(
            self._stage, description=f"  {stage}", total=steps, completed=done, visible=True
        )
        before = f", {done} of them done before" if done else ""
        self._line(f"  {stage}: {steps} step{'s' * (steps != 1)}{before}")

    def advance(self) -> None:
        self._bars.advance(self._stage)
        self._check_time()

    def _check_time(self) -> None:
        check_interrupted()
        if _at_work() > self._until:
            raise TrialTimeoutError(
                f"its search took longer than {self._limit:g} seconds (Study.trial_timeout)"
            )

    def _line(self, line: str) -> None:
        if self._bars.disable:
            self.note(line)

"""What long work tells of its run, and how it learns that a student should stop."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol


class Progress(Protocol):
    """What a method tells of its run, and how it learns that a student should stop."""

    @property
    def rungs(self) -> Sequence[float]:
        """Shares of a student's training, rising in (0, 1), at which `report` wants to hear of it;
        none where nobody stops early. A method may leave them alone: its students then never stop.
        """

    def note(self, line: str) -> None:
        """Something about the study that the user should know, in one line."""

    def begin(self, stage: str, steps: int) -> None:
        """A stage of `steps` steps starts."""

    def report(self, slot: int, rung: float, metric: float, cost: float) -> None:
        """A student has come as far as this one of `rungs`: what it is worth now, and its cost.

        Both are those of a model that is really cut, to the budget it is to end at, whether it
        still searches or not: so they compare with those of every other trial at this rung. The
        metric is on the selection split, and finite. Told before the `advance` of the step.
        """

    def advance(self) -> Set[int]:
        """A step is done. Returns the slots that should stop; each ends with `Stopped`."""


class SilentProgress:
    """A `Progress` that shows nothing and stops nobody: for a method that is called by hand."""

    rungs = ()

    def note(self, line: str) -> None:
        pass

    def begin(self, stage: str, steps: int) -> None:
        pass

    def report(self, slot: int, rung: float, metric: float, cost: float) -> None:
        pass

    def advance(self) -> Set[int]:
        return frozenset()

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
        """Tell the user something about the study.

        Args:
            line: one line of text.
        """

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        """Tell that a stage starts.

        Args:
            stage: its name.
            steps: how many it has.
            done: how many of them were done before, by one that was cut off.
        """

    def report(self, slot: int, rung: float, metric: float, cost: float) -> None:
        """Tell what a student is worth now. Comes before the `advance` of the step.

        Metric and cost are those of a model that is really cut, to the budget it is to end at,
        whether it still searches or not: so they compare with those of every other trial at this
        rung.

        Args:
            slot: the place of the student in its population.
            rung: the one of `rungs` that it has come to.
            metric: on the selection split, finite.
            cost: in the unit of the study.
        """

    def advance(self) -> Set[int]:
        """Tell that a step is done.

        Returns:
            The slots that should stop; each ends with `Stopped`.
        """


class SilentProgress:
    """A `Progress` that shows nothing and stops nobody: for a method that is called by hand."""

    rungs = ()

    def note(self, line: str) -> None:
        pass

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        pass

    def report(self, slot: int, rung: float, metric: float, cost: float) -> None:
        pass

    def advance(self) -> Set[int]:
        return frozenset()

"""Progress of long work."""

from typing import Protocol


class Progress(Protocol):
    """Progress of a method."""

    def note(self, line: str) -> None:
        """Show the user a line about the study.

        Args:
            line: one line of text.
        """

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        """Show that a stage starts.

        Args:
            stage: its name.
            steps: how many it has.
            done: how many of them were done before, by one that was cut off.
        """

    def advance(self) -> None:
        """Show that a step is done."""


class SilentProgress(Progress):
    """A `Progress` that shows nothing: for a method that is called by hand."""

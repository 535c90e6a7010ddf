"""Page and dashboard of a run that a launch is at work on, kept up to date by the launch itself."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.runs.records import RunRecord, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.terminal import for_shell, say_to_stderr
from reports.dashboard import publish
from reports.overlay import overlay
from reports.page.page import write_report

_SHARE = 0.05
"""Of the launch's time: with more behind it a write is left out. All is written anew each time; at
thousands of trials that takes seconds, in which the worker that writes does not train."""


class Following:
    """A callback of a launch that writes page, notes and front; of its calls some are left out. At
    the end of a launch nothing is raised: what cannot be written is noted."""

    def __init__(
        self,
        command: str,
        source: str,
        study_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[str], object] = say_to_stderr,
    ):
        """`command` launched the run, `source` defines its study, in `study_file` if in any."""
        self._launched = command, source, study_file
        self._clock, self._note = clock, note
        self._began, self._spent = clock(), 0.0
        self._folder: Path | None = None

    def __call__(self, run: RunRecord) -> None:
        """Write the run as it stands, or leave that to a later call, or to the end."""
        now = self._clock()
        if self._spent > _SHARE * (now - self._began):
            return
        self._folder = run.folder
        try:
            self._write(run, live=True)
        finally:
            self._spent += self._clock() - now

    def end(self, run: RunRecord) -> None:
        """Write the run as it has ended."""
        try:
            self._write(run, live=False)
        except Exception as error:
            self._note(
                f"the report could not be written ({type(error).__name__}: {error}); the run is "
                f"complete: maskfront report {for_shell(run.folder)} writes it again"
            )

    def cut_short(self) -> None:
        """Write the run as an interrupt or an error left it, if there is a page that calls it
        running; what goes wrong with that is not told beside what ended the launch."""
        if self._folder is not None:
            with suppress(Exception):
                self._write(read_run(self._folder), live=False)

    def _write(self, run: RunRecord, live: bool) -> None:
        folder = RunFolder(run.folder)
        folder.write_launch(*self._launched)
        together = overlay(run)
        write_report(together, folder.report, live)
        publish(together)

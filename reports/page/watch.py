"""The page of a run that is under way, written anew whenever a trial began or ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.runs.records import RunRecord, read_run
from reports.page.page import write_report

_SECONDS = 5.0
"""Between two looks at the storage."""


def watch_report(
    runs: Sequence[Path],
    target: Path,
    written: Callable[[Path], object],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Write the page now and after every change, until Ctrl-C. It is never half-written.

    Args:
        runs: run folders.
        target: the HTML file.
        written: called with the file each time.
        wait: waits for so many seconds between two looks.

    Raises:
        RunError: if there is no run, or if the runs share no axes.
        OSError: if the disk refuses.
    """
    shown: list[RunRecord] = []
    while True:
        records = [read_run(folder) for folder in runs]
        if records != shown:
            written(write_report(records, target, live=True))
            shown = records
        wait(_SECONDS)

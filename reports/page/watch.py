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
    """Write the page now and after every change, until Ctrl-C; `written` is called each time.

    The page is never half-written. Raises what `read_run` and `write_report` raise.
    """
    shown: list[RunRecord] = []
    while True:
        records = [read_run(folder) for folder in runs]
        if records != shown:
            written(write_report(records, target, live=True))
            shown = records
        wait(_SECONDS)

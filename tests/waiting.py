"""Waiting for something that happens elsewhere, but not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.errors import RunError


def wait_for(what: str, happened: Callable[[], object], seconds: float = 300) -> None:
    """Ask until it has happened; the error names `what` was waited for.

    Workers that a test starts need this more than the test: pytest's timeout does not end them. A
    RunError does; most others would only be the end of a trial.
    """
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise RunError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.02)

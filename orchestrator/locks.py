"""A lock between processes that waits in turn and outlives nobody."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class KernelLock:
    """A blocking `flock`: the kernel serves waiters in turn and frees what a dead process held.

    Locks that look again and again starve most of a few busy workers: filelock's, and Optuna's
    own, which also block all for 30 seconds after a kill.
    """

    def __init__(self, path: Path):
        self._path = path
        self._held: int | None = None

    def __enter__(self) -> None:
        self._held = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        assert self._held is not None
        os.close(self._held)
        self._held = None

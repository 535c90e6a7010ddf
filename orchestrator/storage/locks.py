"""A lock between processes that waits in turn and outlives nobody."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kernel_lock(path: Path) -> Iterator[None]:
    """A blocking `flock`: the kernel serves waiters in turn and frees what a dead process held.

    Locks that look again and again starve most of a few busy workers: filelock's, and Optuna's
    own, which also block all for 30 seconds after a kill.
    """
    held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)

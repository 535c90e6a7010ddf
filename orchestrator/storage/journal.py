"""Optuna's journal file, repaired: a torn line or a dead lock holder no longer ends a study."""

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend

from objectives.cache import kernel_lock
from orchestrator.errors import RunError

_BLOCK = 1 << 16  # bytes that are read at once


class RepairedJournal(JournalFileBackend):
    """A journal whose last line is whole whenever something is added to it.

    A process that dies while it writes, and a full disk, leave half a line, to which Optuna would
    glue the next record. It was never acknowledged: it is cut off before each record.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._journal, self._turns = path, path.with_name(f"{path.name}.flock")
        super().__init__(str(path))
        _check_is_journal(path)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add records, all or none, on disk when this returns. Raises OSError."""
        record = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with kernel_lock(self._turns), open(self._journal, "r+b", buffering=0) as file:
            whole = _end_of_last_line(file.fileno())
            file.truncate(whole)
            file.seek(whole)
            try:
                data = memoryview(record.encode())
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise


def _end_of_last_line(file: int) -> int:
    """Where the last whole line ends, in bytes from the start; NULs after it are no line."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - _BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _check_is_journal(path: Path) -> None:
    """Raise RunError for a file of another kind, which a repair would spoil."""
    with path.open("rb") as file:
        start = file.readline(_BLOCK)
    if start.strip(b"\0") and not start.startswith(b'{"op_code":'):
        raise RunError(f"'{path}' is not an Optuna journal; name another file after journal:///")

"""`clean`: remove what a run's cache holds and a later launch makes again."""

import re
import shutil
from pathlib import Path
from stat import S_ISREG

from orchestrator.errors import RunError
from orchestrator.runs.records import load_optuna_study
from orchestrator.runs.run_folder import RunFolder
from orchestrator.workers.heartbeat import living

# Latency tables, as times differ from one measurement to the next, and fine-tuned teachers, which
# `bench` and `cascade` serve and which another machine would make otherwise.
_KEPT = re.compile(r"latency-.*|[0-9a-f]{16}")


def clean(run: Path, *, yes: bool = False) -> tuple[list[Path], int]:
    """Remove the teacher's answers and states, shared students and what else a run made once.

    Args:
        run: the run folder.
        yes: remove them; otherwise they are only counted.

    Returns:
        The files and folders, and the bytes that are free without them: those of a file that a run
        of `polish` shares are not.

    Raises:
        RunError: if no run lies there, or if one of its workers lives.
    """
    outer, folder = load_optuna_study(run), RunFolder(run)
    if workers := living(outer, folder):
        raise RunError(f"'{run}' is at work ({', '.join(workers)}); wait for it, or stop it")
    with folder.locked():
        entries = sorted(folder.cache.iterdir()) if folder.cache.is_dir() else []
        parts = [e for e in entries if not _KEPT.fullmatch(e.name) and not e.is_symlink()]
        inside = [file.lstat() for part in parts for file in (part, *part.rglob("*"))]
        size = sum(file.st_size for file in inside if S_ISREG(file.st_mode) and file.st_nlink == 1)
        for part in parts if yes else ():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    return parts, size

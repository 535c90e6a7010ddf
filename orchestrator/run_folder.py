"""The folder of one run: what lies where in it, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from orchestrator.errors import RunError

_LAUNCH = "launch.json"


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run: storage, artifacts for the dashboard, cache, one folder a trial."""

    path: Path

    @property
    def storage(self) -> Path:
        """The SQLite file of the Optuna study."""
        return self.path / "study.db"

    @property
    def artifacts(self) -> Path:
        """The files that optuna-dashboard shows beside a trial."""
        return self.path / "artifacts"

    @property
    def cache(self) -> Path:
        """What is made once: the fine-tuned teacher, augmented text, the latency table.

        All but the last can be made again: times differ from one measurement to the next.
        """
        return self.path / "cache"

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.path / "report.html"

    def write_launch(self, command: str, source: str) -> None:
        """Keep how the run was launched: the command, and the text of the study file."""
        document = {"command": command, "source": source}
        write_file_whole(self.path / _LAUNCH, json.dumps(document))

    def read_launch(self) -> dict[str, str] | None:
        """What `write_launch` kept; None if the run was launched otherwise."""
        path = self.path / _LAUNCH
        if not path.is_file():
            return None
        document: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def trial(self, number: int) -> Path:
        """The folder of a finished trial: architecture, result, curve, model."""
        return self.path / "trials" / f"{number:05d}"

    def existing(self) -> RunFolder:
        """This folder, if a run lies in it. Raises RunError otherwise."""
        if not self.storage.is_file():
            raise RunError(
                f"'{self.path}' is no run folder: there is no {self.storage.name} in it; "
                "`maskfront run STUDY.py` makes one (under runs/ by default)"
            )
        return self

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one launch; the lock dies with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            with lock:
                yield
        except Timeout as error:
            raise RunError(
                f"'{self.path}' is in use by another launch of this study; wait for it or stop it"
            ) from error


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes `target` at the end, or vanishes on an error.

    A `target` left by a trial that died before it was told is replaced.
    """
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_file_whole(target: Path, content: str) -> None:
    """Write a text file so that no reader ever sees half of it."""
    unfinished = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    try:
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)

"""The folder of one run: what lies where in it, written whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from objectives.cache import atomic_write_text, kernel_lock
from objectives.errors import hide_passwords
from orchestrator.errors import RunError
from orchestrator.runs.reading import REMEDY, as_record, as_type, read_json
from orchestrator.storage.urls import hidden, parse_url, sqlite_url

MODEL = "model"  # within a trial's folder: cut model, tokenizer and labels, for `from_pretrained`
BESIDE = "beside"  # within a trial's folder: one for each other task, laid out as the trial's own
ANSWERS = "answers.safetensors"  # the file of a model's answers within a trial's folder


@dataclass(frozen=True)
class Launched:
    """Record of a launch: the command, the source of the study, and its file, if any."""

    command: str
    source: str
    study_file: str | None = "STUDY.py"
    inode: int | None = None  # of the run folder at the launch, which no copy has
    working_folder: int | None = None  # inode of the one in which the study file was named


class RunFolder:
    """Paths of a run: storage, artifacts for the dashboard, cache, one folder a trial."""

    def __init__(self, path: Path):
        self.path = path
        self.database = path / "study.db"  # the Optuna study, unless another storage was named
        self.address = path / "storage.json"  # names storage and study if not in `database`
        self.artifacts = path / "artifacts"  # the files that optuna-dashboard shows beside a trial
        self.trials = path / "trials"  # a folder for each finished trial
        # A launch makes everything in it again but the fine-tuned teacher, which another machine
        # would make otherwise, and the latency table, as no two measurements are equal.
        self.cache = path / "cache"
        self.report = path / "report.html"
        self.bench = path / "bench.json"  # milliseconds of the front's models
        self.rows = path / "rows.safetensors"  # labels that judge, and the unpruned model's logits
        self.lock = path / ".lock"  # held by a launch while it is at work
        self._launch = path / "launch.json"

    @property
    def storage(self) -> str:
        """URL of the storage, without password; not trusted until `as_named` has checked it."""
        text = self._addressed().get("storage", sqlite_url(self.database))
        try:
            parse_url(text)
        except RunError as error:
            raise RunError(f"'{self.address}': {error.text}{REMEDY}") from error
        return text

    @property
    def shown_storage(self) -> str:
        """`storage` for people."""
        return hidden(parse_url(self.storage))

    def is_own(self, storage: str) -> bool:
        """Whether this is the URL of `database`, which holds this run and nothing else."""
        return storage == sqlite_url(self.database.absolute())

    @property
    def study_name(self) -> str | None:
        """Name of the study in a storage that may hold several."""
        return self._addressed().get("study")

    @property
    def identity(self) -> str | None:
        """Random id that distinguishes this folder from others of the same study."""
        return self._addressed().get("folder")

    @property
    def inode(self) -> int:
        """Inode of the folder, which distinguishes it from copies."""
        return self.path.stat().st_ino

    def _addressed(self) -> Mapping[str, str]:
        if not self.address.is_file():
            return {}
        named: Mapping[str, str] = as_type(
            Mapping[str, str], read_json(self.address), f"'{self.address}'"
        )
        return named

    def write_address(self, storage: str, study_name: str, identity: str) -> None:
        """Write which storage and study the folder belongs to; `storage` has no password."""
        self.path.mkdir(parents=True, exist_ok=True)
        document = {"storage": storage, "study": study_name, "folder": identity}
        atomic_write_text(self.address, json.dumps(document, indent=2) + "\n")

    def write_launch(self, command: str, source: str, study_file: str | None) -> None:
        """Write the record of a launch, without passwords."""
        texts = {"command": command, "source": source, "study_file": study_file}
        document = {name: text and hide_passwords(text) for name, text in texts.items()}
        inodes = {"inode": self.inode, "working_folder": os.stat(".").st_ino}
        atomic_write_text(self._launch, json.dumps({**document, **inodes}))

    def is_of_this_account(self) -> bool:
        """Whether the record of the launch was written by the account at work."""
        return self._launch.stat().st_uid == os.geteuid()

    def read_launch(self) -> Launched | None:
        """Read the record of the last launch; None if there is none, or if it is damaged."""
        with suppress(FileNotFoundError, RunError):
            return as_record(Launched, read_json(self._launch), f"'{self._launch}'")
        return None

    def trial(self, number: int) -> Path:
        """The folder of a finished trial: architecture, result, curve, model."""
        return self.trials / f"{number:05d}"

    def model(self, number: int) -> Path:
        """The folder of a finished trial's cut model."""
        return self.trial(number) / MODEL

    def answers(self, number: int) -> Path:
        """Logits of a finished trial's model on the selection and held-out rows."""
        return self.trial(number) / ANSWERS

    def exists(self) -> bool:
        """Whether the folder holds a run; not if this account may not look into it."""
        try:
            return self.database.is_file() or self.address.is_file()
        except PermissionError:
            return False

    def existing(self) -> Self:
        """Return the folder. Raises RunError unless it holds a run, itself and not by links."""
        self.check_no_links()
        if not self.exists():
            if self.path.is_dir() and not os.access(self.path, os.X_OK):
                raise RunError(f"'{self.path}' may not be entered by this account")
            raise RunError(
                f"'{self.path}' is not a run folder: there is no {self.database.name} in it; "
                "`maskfront run STUDY.py` creates one (under runs/ by default)"
            )
        return self

    def check_no_links(self) -> None:
        """Raise RunError if a part of the run is a link: it may lead to what is nobody's run."""
        for name in ("artifacts", "cache", "trials", "workers"):
            if (part := self.path / name).is_symlink():
                raise RunError(f"'{part}' is a link; put the folder itself there")

    def worker(self, name: str) -> Path:
        """The file that a worker holds locked while it lives. Raises RunError for a path."""
        if Path(name).name != name:
            raise RunError(f"'{self.path}': a worker calls itself {name[:40]!r}, which is a path")
        return self.path / "workers" / f"{name}.lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one launch; the lock ends with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with kernel_lock(self.lock, wait=False):
                yield
        except BlockingIOError as error:
            raise RunError(
                f"'{self.path}' is in use by another launch; wait for it, stop it, add a worker "
                "with `maskfront work` if it runs this study, or choose another folder",
                "out",
            ) from error

    def in_turn(self, doing: str) -> AbstractContextManager[None]:
        """Wait until no other worker of the run is `doing` this."""
        self.path.mkdir(parents=True, exist_ok=True)
        return kernel_lock(self.path / f".lock-{doing}")


def runs_in(folder: Path) -> list[Path]:
    """List the folder itself if it is a run, else the runs in it, by name."""
    if RunFolder(folder).exists():
        return [folder]
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [run for run in inside if RunFolder(run).exists()]


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file; copy it where that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

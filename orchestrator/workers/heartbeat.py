"""Detect live workers in two ways. A worker holds a lock that ends with its process: those of its
machine know at once that it died. Others may not see the lock (not every shared folder passes locks
on, and a machine that is gone releases none): for them it beats into the storage. Optuna's own
heartbeats exist inside `Study.optimize` alone, and not for journals or the proxy."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Self

import optuna

from objectives.cache import is_free, kernel_lock
from objectives.errors import Finite
from orchestrator.runs.reading import as_record
from orchestrator.runs.run_folder import RunFolder

LAUNCHES = "launches"  # study attribute: how many it has had
WORKERS = "worker:"  # study attributes with this prefix are `WorkerRecord`s, one a worker
BEAT = 30.0  # seconds from one beat to the next
GRACE = 120.0  # seconds without a beat after which a worker on another machine is dead
FAREWELL = 5.0  # seconds that a worker waits at its end until the storage knows of it


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """Record of a worker, written at each beat."""

    name: str
    host: str
    machine: str  # id of the running kernel, which the containers of a machine share
    pid: int
    device: str
    beat: int  # how often it has beaten: others compare this, not their clocks with its
    launch: int = 0  # how many launches the study had had when it began
    at: Finite  # when, in seconds since 1970 by its own clock; for people only
    ended: bool = False


def launch_of(optuna_study: optuna.Study) -> int:
    """Number of launches of the study so far."""
    return int(optuna_study.user_attrs.get(LAUNCHES, 0))


def workers_of(optuna_study: optuna.Study, where: str = "the study") -> dict[str, WorkerRecord]:
    """All workers that ever served the study, by name; errors call the study `where`."""
    written = {k: value for k, value in optuna_study.user_attrs.items() if k.startswith(WORKERS)}
    records = [as_record(WorkerRecord, value, f"{where}: {k}") for k, value in written.items()]
    return {record.name: record for record in records}


class Heartbeat:
    """Lock of a worker, and the thread that alone writes its record."""

    # One writer, so that no beat, which the storage may take late, comes after the word of the end.

    def __init__(
        self, optuna_study: optuna.Study, folder: RunFolder, device: str, beat: float = BEAT
    ):
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.record = WorkerRecord(
            name=name,
            host=socket.gethostname(),
            machine=this_machine(),
            pid=os.getpid(),
            device=device,
            beat=0,
            launch=launch_of(optuna_study),
            at=time.time(),
        )
        self._optuna_study, self._every, self._stop = optuna_study, beat, Event()
        self._file, self._held = folder.worker(name), ExitStack()
        self._thread = Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(kernel_lock(self._file))
        self._beat()  # before the first trial: one that never beat would never be missed
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=FAREWELL)
        self._held.close()

    def _beat_on(self) -> None:
        while not self._stop.wait(self._every):
            with suppress(Exception):  # the loop finds out, and says so
                self._beat()
        with suppress(Exception):  # the storage may be what ended this worker
            end_record(self._optuna_study, self.record)
            self._file.unlink(missing_ok=True)  # else the free lock says it

    def _beat(self) -> None:
        self.record = replace(self.record, beat=self.record.beat + 1, at=time.time())
        self._optuna_study.set_user_attr(WORKERS + self.record.name, asdict(self.record))


def is_alive(record: WorkerRecord, folder: RunFolder | None) -> bool:
    """Whether a worker lives: by its lock, else by its last beat if the clocks agree."""
    free = None if folder is None else _has_free_lock(record, folder)
    lately = abs(time.time() - record.at) < GRACE
    return not record.ended and (lately if free is None else not free)


def _has_free_lock(record: WorkerRecord, folder: RunFolder) -> bool | None:
    """Whether the worker's lock is free; None for another machine, or if it cannot be opened."""
    return is_free(folder.worker(record.name)) if record.machine == this_machine() else None


def living(optuna_study: optuna.Study, folder: RunFolder) -> dict[str, WorkerRecord]:
    """Records of live workers by name."""
    return {n: record for n, record in workers_of(optuna_study).items() if is_alive(record, folder)}


def end_record(optuna_study: optuna.Study, record: WorkerRecord) -> None:
    optuna_study.set_user_attr(WORKERS + record.name, asdict(replace(record, ended=True)))


class Watch:
    """Find dead workers by comparing their beats over time."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock = folder, clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked = clock()

    def dead(self, workers: Mapping[str, WorkerRecord]) -> set[str]:
        """Names of dead workers: with a free lock here, elsewhere without a beat for `GRACE`."""
        # The time between two looks counts for a quarter of GRACE at most: if it was long, the
        # storage may have been away for all workers.
        now = self._clock()
        passed, self._looked = min(now - self._looked, GRACE / 4), now
        return {n for n, record in workers.items() if record.ended or self._is_dead(record, passed)}

    def _is_dead(self, record: WorkerRecord, passed: float) -> bool:
        free = _has_free_lock(record, self._folder)
        if free is not None:
            return free
        beat, still = self._seen.get(record.name, (record.beat, -passed))
        still = still + passed if beat == record.beat else 0.0
        self._seen[record.name] = (record.beat, still)
        return still > GRACE


def this_machine() -> str:
    """The identity of the running kernel, or the host's name where it has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()

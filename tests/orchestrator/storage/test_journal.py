"""A journal that is torn, and a lock whose holder is killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from objectives.cache import kernel_lock
from orchestrator.errors import RunError
from orchestrator.storage.connect import RepairedJournal, open_storage


def study_of(path: Path) -> optuna.Study:
    return optuna.create_study(
        study_name="s", storage=open_storage(f"journal:///{path}"), load_if_exists=True
    )


@pytest.mark.parametrize("tail", [b'{"op_code":4,"stu', b"\0" * 5000, b'{"op_code"' + b"\0" * 9])
def test_a_torn_tail_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "study.journal"
    study_of(path).ask()
    with path.open("ab") as file:
        file.write(tail)
    study = study_of(path)
    study.tell(0, 1.0)
    assert [trial.value for trial in study_of(path).trials] == [1.0]
    path.read_text(encoding="utf-8")


def test_a_line_torn_while_others_work_is_cut_off_by_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    first, second = study_of(path), study_of(path)
    first.ask()
    with path.open("ab") as file:
        file.write(b'{"op_code":8,"wor')
    second.tell(0, 2.0)
    first.ask()
    assert [trial.value for trial in study_of(path).trials] == [2.0, None]


def test_optuna_alone_would_be_lost(tmp_path: Path) -> None:
    """If this fails, `RepairedJournal` may be needed no longer."""
    path = tmp_path / "study.journal"
    study_of(path)
    with path.open("ab") as file:
        file.write(b'{"op_code":8,"wor')
    study = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path))))
    with pytest.raises(AttributeError):
        study.ask()


def test_a_full_disk_takes_all_of_a_record_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    study = study_of(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            study.ask()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert study.ask().number == 0


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine, without an end of line")
    with pytest.raises(RunError, match="is not an Optuna journal"):
        open_storage(f"journal:///{path}")
    assert path.read_text() == "mine, without an end of line"


def test_damage_in_the_middle_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    study = study_of(path)
    study.tell(study.ask(), 1.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"op_code":4,"stu' + b"".join(lines[1:]))
    with pytest.raises(RunError, match=r"journal:.* is damaged"):
        study_of(path)


def test_a_killed_holder_frees_the_lock_at_once(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = (
        "import sys, time; from pathlib import Path\n"
        "from objectives.cache import kernel_lock\n"
        "with kernel_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        before = time.monotonic()
        with kernel_lock(lock):
            assert time.monotonic() - before < 30  # what Optuna's own locks wait
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_waiter_is_served_though_the_holder_comes_again_at_once(tmp_path: Path) -> None:
    """Trap T8: of two busy workers Optuna's own lock lets one wait while the other does all."""
    served = threading.Event()

    def wait_once() -> None:
        with kernel_lock(tmp_path / "lock"):
            served.set()

    waiter = threading.Thread(target=wait_once)
    turns = 0
    while turns < 2000 and not served.is_set():
        with kernel_lock(tmp_path / "lock"):
            if not turns:
                waiter.start()
            time.sleep(0.002)
            turns += 1
    waiter.join()
    assert turns < 2000


def test_a_journal_may_begin_in_a_new_folder(tmp_path: Path) -> None:
    RepairedJournal(tmp_path / "new" / "study.journal")
    assert (tmp_path / "new" / "study.journal").read_bytes() == b""

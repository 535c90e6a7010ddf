"""A disk cache: files named by their inputs, made by one process at a time, written atomically."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from objectives.errors import first_line

Read = TypeVar("Read")
seconds_waited = 0.0
"""Time for which this process has waited for others' locks."""


def content_key(ingredients: Mapping[str, object]) -> str:
    """SHA-256, 16 digits, of all that decides an entry, as JSON; numbers of numpy are Python's."""
    text = json.dumps(ingredients, sort_keys=True, default=lambda number: number.item())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def atomic_write(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Path to write a file or folder at; it becomes `target` at the end, or goes on an error."""
    # What a killed process left under the unfinished name is removed first: only one process may
    # write a `target` at a time, so processes that share its folder hold a lock. Without `replace`
    # several may: nothing but an empty folder becomes `target`, the first time; all others raise
    # OSError.
    suffix = "" if replace else f"-{secrets.token_hex(8)}"
    unfinished = target.with_name(f".{target.name}.unfinished{suffix}")
    _remove(unfinished)
    try:
        yield unfinished
        # It survives a power cut: all is on disk before the rename, and the rename at the return.
        for written in (*unfinished.rglob("*"), unfinished):
            sync(written)
        if target.is_dir() and target.samefile("."):  # who is in it stays in it
            if not replace and any(target.iterdir()):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            for written in unfinished.iterdir():
                written.replace(target / written.name)
            sync(target)
            return
        old = None
        if replace and target.is_dir():  # which no folder replaces, so that it goes aside
            old = target.rename(target.with_name(f".{target.name}.replaced-{secrets.token_hex(8)}"))
        try:
            unfinished.replace(target)
        except OSError:
            if old is not None:
                old.rename(target)
            raise
        sync(target.parent)
        if old is not None:
            _remove(old)
    finally:
        _remove(unfinished)


def atomic_write_text(target: Path, content: str) -> None:
    """Write a text file atomically, even by several processes. Raises OSError with `target`."""
    unfinished = target.with_name(f".{target.name}.unfinished-{secrets.token_hex(8)}")
    try:
        unfinished.write_text(content, encoding="utf-8")
        sync(unfinished)
        unfinished.replace(target)
        sync(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk. Raises OSError."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be entered and not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a network disk that cannot sync a folder
            raise
    finally:
        os.close(opened)


@contextmanager
def kernel_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a file against threads and processes; without `wait` raise BlockingIOError if taken."""
    # The kernel serves waiters in turn and frees what a dead process held. Locks that look again
    # and again, such as filelock's and Optuna's own, starve most of a few busy workers.
    held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    global seconds_waited
    began = time.monotonic()
    try:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        seconds_waited += time.monotonic() - began
        yield
    finally:
        os.close(held)


def is_free(lock: Path) -> bool | None:
    """Whether a lock file is free; None if it is missing or may not be opened."""
    try:
        # For writing: NFS locks no other.
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def made_anew(path: Path, reason: str) -> str:
    """Message for a file or folder that a full disk or a power loss left incomplete."""
    return f"'{path}' is damaged ({reason}), and is made anew"


def read_cached(
    file: Path, read: Callable[[Path], Read], note: Callable[[str], object]
) -> Read | None:
    """Return `read(file)`, or None after a note if the file is missing or damaged."""
    try:
        return read(file)
    except FileNotFoundError:
        return None
    except OSError:  # a disk that refuses to read would not like to be written to
        raise
    except Exception as error:  # ValueError mostly; parsers of damaged files raise others too
        note(made_anew(file, first_line(error)))
        return None


def read_array(
    file: Path,
    shape: tuple[int, ...],
    dtype: type[np.generic],
    note: Callable[[str], object],
    *,
    mapped: bool = False,
) -> NDArray[Any] | None:
    """`read_cached` of an array of this shape and type."""

    def read(file: Path) -> NDArray[Any]:
        array: NDArray[Any] = np.load(file, "c" if mapped else None, allow_pickle=False)
        if (array.shape, array.dtype) != (shape, np.dtype(dtype)):
            raise ValueError(f"{array.dtype}{array.shape} in place of {dtype.__name__}{shape}")
        return array

    return read_cached(file, read, note)


def cached_array(
    file: Path,
    shape: tuple[int, ...],
    dtype: type[np.generic],
    note: Callable[[str], object],
    make: Callable[[], NDArray[Any]],
) -> NDArray[Any]:
    """`read_array`; if that fails, the array that `make` returns, which is then written."""
    array = read_array(file, shape, dtype, note)
    if array is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        array = make()
        with atomic_write(file) as unfinished, unfinished.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
    return array


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""Retry calls of a storage while its server is away."""

import errno
import random
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

from objectives.errors import causes
from orchestrator.errors import RunError

RETRY_SECONDS = 120.0  # seconds for which a server may be away before a worker ends
_LONGEST_PAUSE = 5.0
# Codes of the system, PostgreSQL, SQLite and MySQL (its disk, and its table) for a full disk.
_FULL = {errno.ENOSPC, errno.EDQUOT, "53100", "SQLITE_FULL", 1021, 1114}

_Storage = TypeVar("_Storage", bound=BaseStorage)


def retried(storage: _Storage, shown: str, seconds: float = RETRY_SECONDS) -> _Storage:
    """Retry every call while the server is away, with growing pauses; RunError after `seconds`."""
    # Each call is one transaction, and all may be made twice: a second result of a trial is
    # recognised, a trial created in vain is unowned, so that the next claim fails it, and knobs
    # enqueued in vain are tried twice, but for those of a trial that is tried again (`Claims`).
    for name in sorted(BaseStorage.__abstractmethods__):
        setattr(storage, name, _retried_call(storage, name, shown, seconds))
    return storage


def _retried_call(
    storage: BaseStorage, name: str, shown: str, seconds: float
) -> Callable[..., object]:
    call = getattr(storage, name)

    @wraps(call)
    def calls(*arguments: Any, **named: Any) -> object:
        deadline, pause, tries = time.monotonic() + seconds, 0.1, 0
        while True:
            tries += 1
            try:
                return call(*arguments, **named)
            except UpdateFinishedTrialError:
                if tries > 1 and _is_told(storage, *arguments, **named):
                    return True  # the lost answer said so
                raise
            except Exception as error:
                if not is_lost(error):
                    raise
                if time.monotonic() + pause > deadline:
                    raise RunError(
                        f"storage {shown} does not answer ({reason_of(error)}); finished trials "
                        "are kept: bring it back and launch again"
                    ) from error
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)

    return calls


def _is_told(
    storage: BaseStorage, trial_id: int, state: Any = None, values: Any = None, *_: Any, **__: Any
) -> bool:
    trial = storage.get_trial(trial_id)
    return trial.state == state and (trial.values or None) == (values and list(values))


def is_lost(error: BaseException) -> bool:
    """Whether an error of a storage means that its server is away."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        return is_lost(error.__cause__)
    if isinstance(error, DBAPIError):
        away = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        return away and not is_full(error)
    if isinstance(error, PendingRollbackError):  # it went away in the middle of a transaction
        return True
    code = getattr(error, "code", None)  # of a grpc.RpcError; grpc is an extra
    name = getattr(code(), "name", "") if callable(code) else ""
    lost = ("Stream removed", "does not answer")  # the second by a proxy, of its own storage
    return name == "UNAVAILABLE" or (name == "UNKNOWN" and any(s in str(error) for s in lost))


def is_full(error: BaseException) -> bool:
    """Whether a disk is full, here or on a server; judged by codes, as messages vary."""
    for cause in causes(error):
        driver_error = cause.orig if isinstance(cause, DBAPIError) and cause.orig else cause
        codes = [
            getattr(driver_error, name, None) for name in ("errno", "sqlstate", "sqlite_errorname")
        ]
        codes += [code for code in driver_error.args[:1] if isinstance(code, int)]  # PyMySQL's
        if not _FULL.isdisjoint(codes):
            return True
    return False


def reason_of(error: BaseException) -> str:
    """Shorten a driver's error to one line."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    cause = error.orig if isinstance(error, DBAPIError) else error
    details = getattr(cause, "details", None)  # of a grpc.RpcError
    return " ".join(str(details() if callable(details) else cause).split())

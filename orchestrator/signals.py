"""Signals from outside: Ctrl-C, a terminal that closes, a parent that dies. Imports the standard
library alone: a worker looks after its parent before it loads anything else."""

import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any, TextIO, cast

_LOOK = 1.0  # seconds between two looks at the parent, where no kernel sends word of its death
_PR_SET_PDEATHSIG = 1
_asked_to_stop = False


def begin_worker(parent: int) -> None:
    """Leave Ctrl-C in the terminal to the parent, and die with it, whatever is at work then. Linux
    sends its signal when the thread ends that started this process: one that waits for it."""
    gc.disable()  # until it works: torch loads in three quarters of the time
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def _stop(_signal: int, _frame: object) -> None:
    global _asked_to_stop
    _asked_to_stop = True
    raise KeyboardInterrupt


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a callback, finaliser or library swallowed that of a signal."""
    if _asked_to_stop:
        raise KeyboardInterrupt


@contextmanager
def interruptible(remark: str, *, always: bool = False) -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C and SIGTERM; a script prints the remark instead of a
    traceback. A program's own handlers stay, unless `always`."""
    global _asked_to_stop
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {n: handler for n, handler in handlers.items() if handler in usual or always}
    for number in before:
        signal.signal(number, _stop)
    unraisable = sys.unraisablehook
    sys.unraisablehook = partial(_unless_interrupted, unraisable)
    try:
        yield
        check_interrupted()
    except KeyboardInterrupt as error:
        error.args = (remark,)
        if getattr(sys.excepthook, "func", None) is not _in_one_line:
            sys.excepthook = partial(_in_one_line, sys.excepthook)
        raise
    finally:
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            _asked_to_stop = False


def _unless_interrupted(
    otherwise: Callable[..., object], unraisable: "sys.UnraisableHookArgs"
) -> None:
    """Report an error of a finaliser, unless it is an interrupt: `check_interrupted` raises it."""
    if not (_asked_to_stop and unraisable.exc_type is KeyboardInterrupt):
        otherwise(unraisable)


def _in_one_line(
    otherwise: Callable[..., object], kind: type[BaseException], error: BaseException, trace: Any
) -> None:
    if kind is KeyboardInterrupt and error.args:
        sys.stderr.write(f"maskfront: interrupted; {error}\n")
    else:
        otherwise(kind, error, trace)


@contextmanager
def unattended() -> Iterator[None]:
    """Continue when the terminal closes, or when nobody reads the output any more."""
    with ExitStack() as stack:
        if sys.stdout is not None and sys.stderr is not None:
            stack.enter_context(redirect_stdout(cast("TextIO", _Unread(sys.stdout))))
            stack.enter_context(redirect_stderr(cast("TextIO", _Unread(sys.stderr))))
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            stack.callback(signal.signal, signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        yield


class _Unread:
    """Stream that drops its output once its reader or terminal is gone."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        with self._led_nowhere():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer, or drop it."""
        with self._led_nowhere():
            self._stream.flush()

    @contextmanager
    def _led_nowhere(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

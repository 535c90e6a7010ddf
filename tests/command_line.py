"""The command `maskfront`, in this process, which has loaded torch, or in one of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from orchestrator.command.cli import main

COMMAND = [sys.executable, "-m", "orchestrator.command.cli"]


def maskfront(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """What the command prints here, and the code that a process of it would end with.

    A warning and an error that nobody expects end the test; what an import, a signal or a library
    that kept the process's own streams would show, only a process shows.
    """
    given = [str(argument) for argument in arguments]
    out, errors = StringIO(), StringIO()
    asked_to_stop = signal.getsignal(signal.SIGTERM)
    with chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(errors):
        try:
            with pytest.raises(SystemExit) as end:
                main(given)
        finally:
            signal.signal(signal.SIGTERM, asked_to_stop)
    return CompletedProcess(given, end.value.code, out.getvalue(), errors.getvalue())


def maskfront_process(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """The same in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=360,
        check=False,
    )


def assert_one_clear_line(done: CompletedProcess[str], message: str) -> None:
    """It ended with code 2 and one line that says this."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("maskfront: ")
    assert re.search(message, lines[0]), lines[0]

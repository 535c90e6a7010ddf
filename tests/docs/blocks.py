"""The code blocks of a page, and a reader who copies them one after another.

A comment on the line before a block says what is special about it:

    <!-- file: my_study.py -->              the reader saves the block under this name, and runs it
    <!-- until stopped -->                  the command serves until Ctrl-C
    <!-- compiled only: it needs a GPU -->  what the reason says is not to be had here

`<!-- all blocks compiled only: ... -->` says the last of a whole page.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from tests.command_line import maskfront

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"(?:^<!-- (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WHOLE_PAGE = re.compile(r"^<!-- all blocks (compiled only: .+) -->$", re.MULTILINE)
_SERVING = 240
"""Seconds within which a server says where it is."""


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    language: str
    note: str
    text: str

    @property
    def where(self) -> str:
        """For messages: page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def compiled_only(self) -> bool:
        """Whether the page says why this block is not run."""
        return self.note.startswith("compiled only: ")

    @property
    def is_run(self) -> bool:
        """Whether a reader runs it, and can here."""
        return self.language in ("python", "sh") and not self.compiled_only


def blocks_of(page: Path) -> Iterator[Block]:
    """All code blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    whole = _WHOLE_PAGE.search(text)
    for found in _BLOCK.finditer(text):
        note, language, code = found.groups()
        line = text.count("\n", 0, found.start(2)) + 1
        yield Block(page, line, language, note or (whole[1] if whole else ""), code)


def commands(block: Block) -> list[list[str]]:
    """The words of each line of a shell block."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


class Reader:
    """Someone in a folder who copies block after block: Python into one session, the rest into a
    shell. What needs no process of its own has none: it would import torch for ten seconds."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.session: dict[str, Any] = {"__name__": "__main__"}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def copy(self, block: Block) -> None:
        """Do what the block says. Raises what its Python raises, AssertionError if a command fails.

        The folder of the process must be the reader's.
        """
        if block.note.startswith("file: "):
            path = self.folder / block.note.removeprefix("file: ")
            path.write_text(block.text)
            runpy.run_path(str(path), run_name="__main__")
        elif block.language == "python":
            exec(compile(block.text, block.where, "exec"), self.session)
        elif block.note == "until stopped":
            self._serve(block)
        else:
            for program, *arguments in commands(block):
                assert program == "maskfront", f"{block.where}: what is {program}?"
                done = maskfront(*arguments, cwd=self.folder)
                assert done.returncode == 0, f"{block.where}\n{done.stdout}\n{done.stderr}"

    def _serve(self, block: Block) -> None:
        """Start it, wait for the address that it prints, press Ctrl-C."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {block.text}"],
            cwd=self.folder,
            env=self.environment | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert server.stdout is not None
        late = Timer(_SERVING, server.kill)
        late.start()
        try:
            said = server.stdout.readline()
        finally:
            late.cancel()
            server.send_signal(signal.SIGINT)
            rest, _ = server.communicate(timeout=_SERVING)
        assert "http://127.0.0.1:" in said + rest, f"{block.where}\n{said}{rest}"

"""Print lines to a terminal unwrapped, without passwords or control characters."""

import re
import shlex
from typing import Any

from rich.console import Console

from objectives.errors import hide_passwords

# Those that turn the direction of writing, too.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def say(console: Console, line: str) -> None:
    """Print a line unwrapped, with control characters escaped: names come from strangers' files."""
    console.out(visible(line), highlight=False)


def visible(text: str) -> str:
    """Escape control characters other than line ends and tabs, and hide passwords."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], hide_passwords(text))


def for_shell(text: object) -> str:
    """Quote one word of a command that people copy."""
    return shlex.quote(visible(str(text)).replace("\n", "\\n").replace("\t", "\\t"))


def say_to_stderr(line: str) -> None:
    """Print a line to stderr, beside the result of a command."""
    say(Console(stderr=True), f"maskfront: {line}")


class SaysOnce(Console):
    """Console that prints each line about data and models once, though every round repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def out(self, *objects: Any, **options: Any) -> None:
        """Print a line if it is new; lines of steps, which begin with a space, always."""
        line = str(objects[0])
        if line.startswith(" ") or line not in self._said:
            super().out(*objects, **options)
        self._said.add(line)

"""How a line reaches a terminal: as wide as it is, and without what would steer it."""

import re

from rich.console import Console

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(console: Console, line: str) -> None:
    """One line, as wide as it is, without what would steer a terminal: names and reasons come from
    storages, data and checkpoints."""
    console.out(visible(line), highlight=False)


def visible(text: str) -> str:
    """Text with its control characters written out, but for line ends and tabs."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def say_to_stderr(line: str) -> None:
    """What a command has to say beside its result."""
    say(Console(stderr=True), f"maskfront: {line}")

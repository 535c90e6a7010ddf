"""Names and reasons come from storages, data and checkpoints: none of them steers a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from orchestrator.study import Study
from orchestrator.terminal import say, visible
from orchestrator.workers.progress import LaunchProgress


def test_a_line_is_shown_as_it_is_and_whole() -> None:
    for terminal in (False, True):
        out = io.StringIO()
        line = "trial 3: 'runs/a:key:b' [bold]failed[/] " + "word " * 40
        say(Console(file=out, force_terminal=terminal, width=80), line)
        assert out.getvalue() == line + "\n"


def test_control_characters_are_written_out() -> None:
    assert visible("a\tb\nc é 😀") == "a\tb\nc é 😀"
    assert visible("bad\x1b[1A\x1b[2Kall good\r") == r"bad\x1b[1A\x1b[2Kall good\r"
    assert visible("\x9b2J\x07") == r"\x9b2J\x07"


def test_a_study_may_have_any_name(study: Study) -> None:
    out = io.StringIO()
    object.__setattr__(study, "name", "x[/b]")
    with LaunchProgress(study, Console(file=out, force_terminal=True)) as progress:
        progress.note("\x1b[2Jgone")
    assert "x[/b]" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()

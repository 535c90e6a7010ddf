"""The section of what `compress` wrote: kept in the run folder, and damage is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from reports.figures.compressed import (
    ALONE,
    WRITTEN,
    CompressChoice,
    compressed_section,
    forget_choice,
)


def test_a_choice_is_kept_and_damage_is_refused(mixed_run: RunRecord, tmp_path: Path) -> None:
    run = replace(mixed_run, folder=tmp_path)
    assert compressed_section(run) is None
    points = (
        (ALONE, "trial 3", 0.5, 0.97),
        (ALONE, "trial 1", 0.2, 0.9),
        (WRITTEN, "it", 0.2, 0.9),
    )
    (written := tmp_path / "small").mkdir()
    sentences = ("It is here.", "It is good.", "It passes.", "serve it")
    choice = CompressChoice(sentences=sentences, points=points, files=(), folder=str(written))
    choice.keep(run)
    written.rmdir()
    forget_choice(tmp_path)
    assert compressed_section(run) is None, "the folder that it speaks of is gone"
    written.mkdir()
    choice.keep(run)
    forget_choice(tmp_path)
    shown = compressed_section(run)
    assert shown is not None
    answer, section = shown
    assert (answer, section.sentences[0]) == ("It is here. It is good.", "It passes.")
    assert section.commands == ("serve it",)
    alone, _, star = section.panels[0].figure.data
    assert (list(alone.x), list(star.y)) == ([0.2, 0.5], [0.9])
    file = tmp_path / "compressed.json"
    file.write_text(file.read_text().replace("0.97", '"0.97"'))
    with pytest.raises(RunError, match=r"points is .*; it must be"):
        compressed_section(run)

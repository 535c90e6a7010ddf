"""What a cascade that was written is worth, and its model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from objectives.combining.cascade import Cascade
from orchestrator.runs.records import RunRecord
from reports.exporting.card import TEMPLATES


@dataclass(frozen=True, kw_only=True)
class Cascaded:
    """A cascade that was written, and what it is worth by its own folder."""

    folder: Path
    """Where it is."""
    cascade: Cascade
    """What was expected of it: costs are milliseconds from text to label, on one thread."""
    milliseconds: float
    """Mean of a held-out text in the folder as it was written."""
    slow: float
    """The 95th percentile."""
    speed_up: float
    """How many times as fast as the unpruned model in the same engine."""
    heldout_agreement: float
    """With the unpruned model in the same engine, by the folder's own answers."""
    heldout_metric: float
    """Of the task, by the same answers."""
    deferred: float
    """Share of the held-out texts that the large model was asked about."""


def cascade_card(run: RunRecord, done: Cascaded, engine: str, max_length: int) -> str:
    """Markdown with the hub's front matter."""
    names = [
        "The unpruned model" if number is None else f"The model of trial {number}"
        for number in (done.cascade.small, done.cascade.large)
    ]
    return TEMPLATES.get_template("cascade_card.md.j2").render(
        run=run,
        done=done,
        engine=engine,
        max_length=max_length,
        small=names[0],
        large=names[1][0].lower() + names[1][1:],
    )

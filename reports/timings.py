"""Timings of `objectives.delivery.bench` as a table and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from orchestrator.runs.results import ratio_text

if TYPE_CHECKING:
    from objectives.delivery.timings import Bench


def timings_document(bench: Bench) -> dict[str, Any]:
    """Describe each model, engine and shape in a row; times in milliseconds, FLOPs as shares."""
    rows = [asdict(timing) | {"median": timing.milliseconds} for timing in bench.timings]
    return asdict(bench) | {"timings": rows}


def timings_table(bench: Bench) -> Table:
    """Table of megabytes, milliseconds, speed-ups over the reference and scores of fewer bits."""
    conditions = bench.conditions
    caption = [
        f"speed-up: times as fast as {escape(_short(bench.reference))} in its fastest float32"
    ]
    if any(timing.texts for timing in bench.timings):
        how = "the task's own texts and tokenizer, one thread, processor time"
        caption.append(f"text to label: {how}")
    caption += [f"no {engine}: {escape(why)}" for engine, why in bench.skipped.items()]
    table = Table(
        title=f"one forward pass of batch x length, median of {conditions['rounds']}; "
        f"{conditions['device']}, {conditions['threads']} threads",
        caption="\n".join(caption),
        box=SIMPLE_HEAD,
        collapse_padding=True,  # a terminal is 80 columns wide
    )
    scored = any(timing.worth for timing in bench.timings)
    last = ("metric", "held out") if scored else ()
    for column in ("model", "FLOPs", "MB", "ms", "95%", "speed-up", *last):
        if column == "model":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    shape = attrgetter("engine", "batch", "length", "texts")
    for (engine, *timed), group in groupby(bench.timings, shape):
        table.add_row(f"[bold]{engine}\n{shape_text(*timed)}")
        for timing in group:
            worth = timing.worth
            table.add_row(
                *(escape(_short(timing.model)), ratio_text(timing.flops_ratio)),
                *(f"{timing.megabytes:.1f}", f"{timing.milliseconds:.2f}", f"{timing.slow:.2f}"),
                f"{timing.speed_up:.2f}",
                *([f"{worth.metric:.4f}", f"{worth.heldout_metric:.4f}"] if worth else []),
            )
        table.add_section()
    return table


def shape_text(batch: int, length: int, texts: bool) -> str:
    """Describe what was timed."""
    return f"{batch} x text to label" if texts else f"{batch} x {length} tokens"


def _short(folder: str) -> str:
    return "/".join(Path(folder).parts[-3:])

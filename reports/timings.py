"""Measurements of `objectives.delivery.bench`, as a table and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from orchestrator.runs.results import ratio_text

if TYPE_CHECKING:
    from objectives.delivery.bench import Bench, Timing


def timings_document(bench: Bench) -> dict[str, Any]:
    """A row for each model, engine and shape; times in milliseconds, FLOPs as shares.

    A row of `texts` is of calls from text to label, and compared with such rows alone. `speed_up`
    is how many times as fast as the reference in that engine of float32 in which it is
    fastest (`against`), `speed_up_in_engine` as the reference in the same engine. `worths` has
    what models are worth in engines with fewer than 32 bits, where they were scored.
    """
    return {
        "reference": bench.reference,
        "conditions": dict(bench.conditions),
        "skipped": dict(bench.skipped),
        "timings": [_row(bench, timing) for timing in bench.timings],
        "worths": [asdict(worth) for worth in bench.worths],
    }


def _row(bench: Bench, timing: Timing) -> dict[str, Any]:
    shape = attrgetter("texts", "batch", "length")
    of_reference = [other for other in bench.timings if other.model == bench.reference]
    references = [other for other in of_reference if shape(other) == shape(timing)]
    # A user who named none of float32 gets the fastest of those that are there.
    fastest = min(references, key=lambda reference: (reference.bits != 32, reference.quartiles[1]))
    same = next(reference for reference in references if reference.engine == timing.engine)
    return {
        **{name: value for name, value in asdict(timing).items() if name != "quartiles"},
        "flops_ratio": timing.flops / same.flops,
        "median": timing.quartiles[1],
        "quartiles": list(timing.quartiles),
        "against": fastest.engine,
        "speed_up": fastest.quartiles[1] / timing.quartiles[1],
        "speed_up_in_engine": same.quartiles[1] / timing.quartiles[1],
    }


def timings_table(bench: Bench) -> Table:
    """Megabytes, milliseconds with their 95th percentile, how many times as fast as the reference,
    and what fewer bits are worth where that was scored."""
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
    worths = {(worth.model, worth.engine): worth for worth in bench.worths}
    last = ("metric", "held out") if worths else ()
    for column in ("model", "FLOPs", "MB", "ms", "95%", "speed-up", *last):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    rows = timings_document(bench)["timings"]
    shape = itemgetter("engine", "batch", "length", "texts")
    for (engine, *timed), group in groupby(rows, shape):
        table.add_row(f"[bold]{engine}\n{shape_text(*timed)}")
        for row in group:
            worth = worths.get((row["model"], engine))
            table.add_row(
                *(escape(_short(row["model"])), ratio_text(row["flops_ratio"])),
                *(f"{row['bytes'] / 1e6:.1f}", f"{row['median']:.2f}", f"{row['slow']:.2f}"),
                f"{row['speed_up']:.2f}",
                *([f"{worth.metric:.4f}", f"{worth.heldout_metric:.4f}"] if worth else []),
            )
        table.add_section()
    return table


def shape_text(batch: int, length: int, texts: bool) -> str:
    """Describe what was timed."""
    return f"{batch} x text to label" if texts else f"{batch} x {length} tokens"


def _short(folder: str) -> str:
    return "/".join(Path(folder).parts[-3:])

"""What `objectives.delivery.bench` measured, as a table and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from objectives.delivery.bench import Bench


def timings_document(bench: Bench) -> dict[str, Any]:
    """A row for each model, engine and shape; times in milliseconds, shares of the reference's."""
    return {
        "reference": bench.reference,
        "conditions": dict(bench.conditions),
        "skipped": dict(bench.skipped),
        "timings": [
            {
                **{name: value for name, value in asdict(timing).items() if name != "quartiles"},
                "flops_ratio": timing.flops / reference.flops,
                "median": timing.quartiles[1],
                "quartiles": list(timing.quartiles),
                "speed_up": reference.quartiles[1] / timing.quartiles[1],
            }
            for timing in bench.timings
            for reference in bench.timings
            if (reference.model, reference.engine, reference.batch, reference.length)
            == (bench.reference, timing.engine, timing.batch, timing.length)
        ],
    }


def timings_table(bench: Bench) -> Table:
    """Milliseconds with their quartiles, and how many times as fast as the reference."""
    conditions = bench.conditions
    table = Table(
        title=f"one forward pass of batch x length, median of {conditions['rounds']}; "
        f"{conditions['device']}, {conditions['threads']} threads",
        caption="\n".join(f"no {engine}: {why}" for engine, why in bench.skipped.items()) or None,
        box=SIMPLE_HEAD,
    )
    for column in ("model", "FLOPs", "ms", "quartiles", "speed-up"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    rows = timings_document(bench)["timings"]
    for (engine, batch, length), group in groupby(
        rows, key=lambda row: (row["engine"], row["batch"], row["length"])
    ):
        table.add_row(f"[bold]{engine}, {batch} x {length}")
        for row in group:
            low, middle, high = row["quartiles"]
            table.add_row(
                *(escape(_short(row["model"])), f"{row['flops_ratio']:.3f}", f"{middle:.1f}"),
                *(f"{low:.1f} - {high:.1f}", f"{row['speed_up']:.2f}"),
            )
        table.add_section()
    return table


def _short(folder: str) -> str:
    return "/".join(Path(folder).parts[-3:])

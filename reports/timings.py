"""What `objectives.bench` measured, as a table and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from objectives.bench import Bench


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
        title=f"milliseconds of a forward pass, median (quartiles) of {conditions['rounds']}; "
        f"{conditions['device']}, {conditions['threads']} threads",
        caption="\n".join(f"no {engine}: {why}" for engine, why in bench.skipped.items()) or None,
    )
    for column in ("engine", "batch", "length", "model", "FLOPs ratio", "ms", "times as fast"):
        table.add_column(column, justify="left" if column in ("engine", "model") else "right")
    rows = timings_document(bench)["timings"]
    for (engine, batch, length), group in groupby(
        rows, key=lambda row: (row["engine"], row["batch"], row["length"])
    ):
        for row in group:
            low, middle, high = row["quartiles"]
            table.add_row(
                *(engine, str(batch), str(length), _short(row["model"])),
                f"{row['flops_ratio']:.3f}",
                f"{middle:.1f} ({low:.1f} to {high:.1f})",
                f"{row['speed_up']:.2f}",
            )
        table.add_section()
    return table


def _short(folder: str) -> str:
    return "/".join(Path(folder).parts[-3:])

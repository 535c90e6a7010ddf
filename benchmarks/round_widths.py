"""Would FFN widths that are multiples of 8, 16 or 32 be faster than the odd ones a search finds?

Takes an exported model, rounds the FFN width of every layer to the nearest multiple, and times all
with `objectives.delivery.bench`, models taking turns. Rounding changes the FLOPs a little: what
counts is the time per FLOP. A model whose layers are all one neuron wider is the control: its
widths are as odd as before, so what it differs by is noise.

    python -m benchmarks.round_widths MODEL [--threads 2] [--rounds 40]

Prints a table and writes benchmarks/results/round_widths-cpu.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from objectives.delivery.bench import bench
from objectives.device import quiet_libraries
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)
from reports.timings import timings_document

MULTIPLES = (8, 16, 32)


def with_widths(config: dict[str, Any], widths: list[int], folder: Path) -> Path:
    """A model of random weights whose layers have these FFN widths."""
    layers = {
        number: layer | {"intermediate_size": width}
        for (number, layer), width in zip(config["per_layer_config"].items(), widths, strict=True)
    }
    model = PrunedBertForSequenceClassification(
        PrunedBertConfig.from_dict(config | {"per_layer_config": layers})
    )
    model.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    quiet_libraries()
    torch.manual_seed(0)
    console = Console(width=110)
    config = json.loads((options.model / "config.json").read_text())
    found = [layer["intermediate_size"] for layer in config["per_layer_config"].values()]
    variants = {"as found": found, "one wider": [width + 1 for width in found]} | {
        f"multiples of {multiple}": [multiple * round(width / multiple) for width in found]
        for multiple in MULTIPLES
    }
    with TemporaryDirectory() as scratch:
        folders = [
            with_widths(config, widths, Path(scratch) / name) for name, widths in variants.items()
        ]
        timed = bench(
            folders[1:],
            against=folders[0],
            batches=options.batches,
            lengths=[options.length],
            engines=("eager", "onnxruntime"),
            rounds=options.rounds,
            threads=options.threads,
            say=console.print,
        )
    named = tuple(replace(timing, model=Path(timing.model).name) for timing in timed.timings)
    document = timings_document(replace(timed, timings=named, reference="as found"))
    table = Table("engine", "batch", "widths", "FLOPs", "ms", "ms per FLOP", title=str(found))
    for row in document["timings"]:
        row["per_flop"] = 1 / (row["speed_up_in_engine"] * row["flops_ratio"])
        table.add_row(
            *(row["engine"], str(row["batch"]), row["model"], f"{row['flops_ratio']:.3f}"),
            *(f"{row['median']:.2f}", f"{row['per_flop']:.3f}"),
        )
    console.print(table)
    document["widths"] = variants
    out = Path(__file__).parent / "results" / "round_widths-cpu.json"
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

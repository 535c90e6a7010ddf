"""Weights of two bits and of one: learnt, split, or rounded at the end, at equal epochs.

MiniLM-L6 is fine-tuned on a task once. Each arm makes a model of few bits from it, with inputs of 8
bits, then of 4; embeddings have 2 in all:

- `rounded 2`, `rounded 1`: the teacher, rounded, and not trained.
- `ternary`: `TernaryBert`. `ternary, two stages`: the same epochs, first on attention scores and
  hidden states, then on the logits, as the paper has it.
- `split`: `BinaryBert`, half of its epochs ternary and half binary. `split, two stages` likewise.
  `split half`: the layers are split that gain most for half of the bytes.
- `scratch`: the whole model in weights of one bit from the start, by the training of `ternary`.
- `half ternary`: what `split` begins with, trained for all epochs and not split.

    OMP_NUM_THREADS=1 python -m benchmarks.few_bits --cache FOLDER [--task sst2 --glue FOLDER]
        [--seeds 0 1 2] [--epochs 1] [--arms ternary split ...] [--input-bits 8 4]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/few_bits.json row by row and goes on where it was stopped; prints the means of
the rows there. KL is the mean divergence from the teacher's answers on the selection split, in
nats; seconds are those of the processor; bytes those of model.safetensors. Seeds change the order
of the batches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.elastic import workbench
from benchmarks.search_quality import measure
from maskfront import BinaryBert, Stage, TernaryBert
from objectives.device import quiet_libraries
from objectives.staged_method import Staged
from objectives.training.stages import Loss

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "few_bits.json"
EPOCHS = {"tweets": 1.0, "sst2": 0.5, "cola": 1.0}
RATES = {"ternary": 3e-4, "binary": 3e-4}
ARMS = (
    *("rounded 2", "rounded 1", "ternary", "scratch", "split", "half ternary"),
    *("ternary, two stages", "split, two stages", "split half"),
)


def stages(kind: str, epochs: float, *, two: bool) -> tuple[Stage, ...]:
    """Training with weights of this kind for so many epochs, all at once or in two stages."""
    losses: tuple[Loss, ...] = ("intermediate", "prediction") if two else ("prediction+hidden",)
    return tuple(
        Stage(
            name=f"{kind} {loss}",
            epochs=epochs / len(losses),
            learning_rate=RATES[kind],
            loss=loss,
            quantised=True,
        )
        for loss in losses
    )


def method(arm: str, epochs: float) -> Staged:
    """The method of an arm."""
    kind, two = arm.removesuffix(", two stages"), arm.endswith("two stages")
    if kind.startswith("rounded"):
        return TernaryBert(weight_bits=int(kind[-1]), stages=())
    if kind.startswith("split"):
        first, then = (stages(own, epochs / 2, two=two) for own in ("ternary", "binary"))
        share = 0.5 if kind == "split half" else 1.0
        return BinaryBert(stages=first + then, first_binary=then[0].name, split=share)
    if kind == "scratch":
        return TernaryBert(weight_bits=1, stages=stages("binary", epochs, two=two))
    ratio = 0.5 if kind == "half ternary" else 1.0
    return TernaryBert(target_ratio=ratio, stages=stages("ternary", epochs, two=two))


def run(arguments: argparse.Namespace, console: Console) -> None:
    """All rows that the file does not hold yet."""
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    epochs = arguments.epochs or EPOCHS[arguments.task]
    bench = workbench(arguments.task, arguments.glue, arguments.cache)
    measure(bench, method("half ternary", 0.01), 0)  # what is kept for all is nobody's time
    for seed in arguments.seeds:
        for bits in arguments.input_bits:
            for arm in arguments.arms:
                trains = {} if arm.startswith("rounded") else {"epochs": epochs}
                key = {"task": arguments.task, "seed": seed, "arm": arm, "input_bits": bits}
                if any({**key, **trains}.items() <= row.items() for row in rows):
                    continue
                found = measure(bench, replace(method(arm, epochs), input_bits=bits), seed)
                whole = bench.unpruned
                kept = ("kl", "select", "heldout", "bytes", "processor_seconds")
                rows.append(
                    {
                        **key,
                        **trains,
                        **{name: found[name] for name in kept},
                        "teacher_select": whole.metric,
                        "teacher_heldout": whole.heldout_metric,
                        "teacher_bytes": whole.bytes,
                    }
                )
                _write(rows)
                console.print(rows[-1])


def _write(rows: list[Row]) -> None:
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "rows": rows,
    }
    unfinished = RESULTS.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(RESULTS)


def table_of(rows: Iterable[Row]) -> Table:
    """Means over the seeds."""
    table = Table(title="weights of few bits")
    columns = ("task", "arm", "inputs", "epochs", "seeds", "KL", "select", "held out", "MB", "s")
    for column in columns:
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["task"], row["arm"], row["input_bits"], row.get("epochs", 0))
        groups.setdefault(key, []).append(row)
    for key, group in groups.items():
        kl, select, heldout, size, seconds = (
            statistics.fmean(row[name] for row in group)
            for name in ("kl", "select", "heldout", "bytes", "processor_seconds")
        )
        scores = (f"{value:.4f}" for value in (kl, select, heldout))
        table.add_row(
            *map(str, key), str(len(group)), *scores, f"{size / 1e6:.2f}", f"{seconds:.0f}"
        )
    return table


def main() -> None:
    """Run, or go on, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=list(EPOCHS))
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=float, help="of all stages of an arm together")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--input-bits", nargs="+", type=int, choices=[8, 4], default=[8, 4])
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    quiet_libraries()
    run(parser.parse_args(), Console())
    Console().print(table_of(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()

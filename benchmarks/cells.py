"""Below a tenth of the FLOPs: cells of a few operations, or BERTs that are cut that far?

MiniLM-L6 is fine-tuned on a task once. All students take the same number of steps with 32 rows, on
the labelled rows or (`--text`) on these and on text whose labels nobody reads:

    cut R           `FisherSearch`, the BERT at a ratio R, at the rate for cut ones
    words           `CellSearch` without a block: mean and maximum of word embeddings
    conv5 ...       with these operations, one block each

    OMP_NUM_THREADS=1 python -m benchmarks.cells --cache FOLDER [--text]
        [--task sst2|cola --glue FOLDER] [--seeds 0 1 2] [--steps 1000]

Without `--glue` the task is that of the quickstart, "tweets". Writes benchmarks/results/cells.json
row by row and goes on where it was stopped; prints the means of the rows there. KL is the
divergence from the teacher's answers on the selection split, in nats; seconds are those of the
processor. Milliseconds are of one thread of onnxruntime, one text as long as the task allows, the
models of one seed taking turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.elastic import workbench
from benchmarks.search_quality import measure
from maskfront import CellSearch, FisherSearch, SearchMethod, SearchResult, Stage
from objectives.delivery.bench import OfRun
from objectives.delivery.bench import bench as time_models
from objectives.device import quiet_libraries
from objectives.progress import SilentProgress
from objectives.workbench.workbench import Workbench

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "cells.json"
BATCH = 32
RATE_OF_CUT = 6e-4
"""Twice that of the other benchmarks: so far down it comes nearer to the teacher."""
CUT = (0.1, 0.05)
CELLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "words": (128, ()),
    "conv5": (128, ("conv5",)),
    "conv5 conv5": (128, ("conv5", "conv5")),
    "conv5 conv5, 64 wide": (64, ("conv5", "conv5")),
    "conv3 conv5 conv7 dilated7": (128, ("conv3", "conv5", "conv7", "dilated7")),
    "conv5 attention": (128, ("conv5", "attention")),
    "max3 gated": (128, ("max3", "gated")),
}


def methods(rows: int, steps: int) -> dict[str, SearchMethod]:
    """The arms, where train has so many rows."""
    epochs = steps * BATCH / rows
    stage = Stage(
        name="recover", epochs=epochs, learning_rate=RATE_OF_CUT, loss="prediction+hidden"
    )
    cut = FisherSearch(tolerance=0.01, stages=(stage,))
    return {
        **{f"cut {ratio}": replace(cut, target_ratio=ratio) for ratio in CUT},
        **{
            name: CellSearch(width=width, operations=operations, epochs=epochs)
            for name, (width, operations) in CELLS.items()
        },
    }


def milliseconds(bench: Workbench, models: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each model in float32 and int8, and of the unpruned one."""
    with TemporaryDirectory() as scratch:
        folders = {str(Path(scratch) / str(place)): name for place, name in enumerate(models)}
        for folder, name in folders.items():
            models[name].save_pretrained(folder)
        timed = time_models(
            [Path(folder) for folder in folders],
            of_run=OfRun(unpruned=bench.problem.teacher),
            batches=(1,),
            lengths=(bench.problem.seq_len,),
            engines=("onnxruntime", "onnxruntime-int8"),
            threads=1,
        )
    found: dict[str, dict[str, float]] = {}
    for one in timed.timings:
        name = folders.get(one.model, one.model)
        found.setdefault(name, {})[one.engine] = round(one.quartiles[1], 4)
    return found


def of_seed(bench: Workbench, common: Row, steps: int) -> list[Row]:
    """A row for each arm."""
    rows, models = [], {}
    for name, method in methods(len(bench.problem.train), steps).items():
        found = measure(bench, method, common["seed"])
        kept = {key: found[key] for key in ("kl", "select", "heldout", "reached", "bytes")}
        rows.append({**common, "arm": name, "seconds": found["processor_seconds"], **kept})
        (again,) = type(method).search(
            [replace(method, **_hardly(method))],
            bench.problem,
            seed=common["seed"],
            progress=SilentProgress(),
        )
        assert isinstance(again, SearchResult)
        models[name] = again.model
    times = milliseconds(bench, models)
    return [{**row, "ms": times[row["arm"]], "ms_unpruned": times["unpruned"]} for row in rows]


def _hardly(method: SearchMethod) -> dict[str, Any]:
    """As good as no training: time does not depend on weights."""
    return {"epochs": 1e-6} if isinstance(method, CellSearch) else {"stages": ()}


def table_of(rows: list[Row]) -> Table:
    """Means over the seeds."""
    table = Table(title="students of the same steps")
    columns = ("task", "rows", "arm")
    for column in (*columns, "seeds", "ratio", "KL", "selection", "held out", "MB", "seconds"):
        table.add_column(column, justify="right")
    for column in ("ms", "ms int8", "times int8"):
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    for key, group in groups.items():
        ratio, kl, select, heldout, size, seconds = (
            statistics.fmean(row[name] for row in group)
            for name in ("reached", "kl", "select", "heldout", "bytes", "seconds")
        )
        ms, ms_int8 = (
            statistics.fmean(row["ms"][engine] for row in group)
            for engine in ("onnxruntime", "onnxruntime-int8")
        )
        faster = statistics.fmean(
            row["ms_unpruned"]["onnxruntime-int8"] / row["ms"]["onnxruntime-int8"] for row in group
        )
        table.add_row(
            *(*map(str, key), str(len(group)), f"{ratio:.2g}", f"{kl:.4f}", f"{select:.4f}"),
            *(f"{heldout:.4f}", f"{size / 1e6:.1f}", f"{seconds:.0f}", f"{ms:.2f}"),
            *(f"{ms_int8:.2f}", f"{faster:.1f}"),
        )
    return table


def main() -> None:
    """Run, or go on, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2", "cola"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--text", action="store_true", help="rows beyond train, without labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    arguments = parser.parse_args()
    quiet_libraries()
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    bench = workbench(arguments.task, arguments.glue, arguments.cache, all_text=arguments.text)
    for seed in arguments.seeds:
        common = {
            "task": arguments.task,
            "rows": "with text" if arguments.text else "labelled",
            "seed": seed,
            "steps": arguments.steps,
        }
        if not any(common.items() <= row.items() for row in rows):
            rows += of_seed(bench, common, arguments.steps)
            RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    Console(width=160).print(table_of(rows))


if __name__ == "__main__":
    main()

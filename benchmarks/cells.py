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

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import measure, search, workbench
from maskfront import CellSearch, FisherSearch, SearchMethod, Stage
from objectives.delivery.bench import OfRun
from objectives.delivery.bench import bench as time_models
from objectives.workbench.workbench import Workbench

INT8 = "onnxruntime-int8"
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
        timed = replace(method, **_hardly(method))
        models[name] = search(timed, bench.problem, common["seed"]).model
    times = milliseconds(bench, models)
    return [{**row, "ms": times[row["arm"]], "ms_unpruned": times["unpruned"]} for row in rows]


def _hardly(method: SearchMethod) -> dict[str, Any]:
    """As good as no training: time does not depend on weights."""
    return {"epochs": 1e-6} if isinstance(method, CellSearch) else {"stages": ()}


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True)
    parser.add_argument("--text", action="store_true", help="rows beyond train, without labels")
    parser.add_argument("--steps", type=int, default=1000)
    asked = parsed(parser)
    rows = Rows(asked.out / "cells.json")
    bench = workbench(asked.task, asked.glue, asked.cache, all_text=asked.text)
    for seed in asked.seeds:
        key = {"task": asked.task, "rows": "with text" if asked.text else "labelled", "seed": seed}
        key["steps"] = asked.steps
        if not rows.has(key):
            rows.add(*of_seed(bench, key, asked.steps))
    shown = [
        {
            **row,
            "MB": row["bytes"] / 1e6,
            "ms float32": row["ms"]["onnxruntime"],
            "ms int8": row["ms"][INT8],
            "times int8": row["ms_unpruned"][INT8] / row["ms"][INT8],
        }
        for row in rows.rows
    ]
    print_means(
        "students of the same steps",
        shown,
        ("task", "rows", "arm"),
        {
            **{"reached": ".2g", "kl": ".4f", "select": ".4f", "heldout": ".4f", "MB": ".1f"},
            **{"seconds": ".0f", "ms float32": ".2f", "ms int8": ".2f", "times int8": ".1f"},
        },
    )


if __name__ == "__main__":
    main()

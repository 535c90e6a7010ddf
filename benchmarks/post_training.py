"""Few bits after training: rounding, reconstruction from a few rows, training with the bits.

MiniLM-L6 is fine-tuned once a task; nothing is cut. Of W-E-A bits, those of weights, embeddings and
of what enters the weights:

    nearest   rounded to the nearest code, no data
    REM       `Mrem`, a module for each layer, each on what the quantised ones before it give
    MREM-S    `Mrem`, four modules, one after another
    MREM-P    `Mrem`, four modules at the same time, with teacher forcing
    QAT       `FisherSearch` at ratio 1, distilled with the bits on all train rows

    python -m benchmarks.post_training --task tweets --cache FOLDER [--glue FOLDER]
        [--seeds 0 1 2] [--bits 2-2-8 4-4-8] [--arms nearest REM MREM-S MREM-P QAT]

KL is the divergence from the teacher's answers, in nats. Processor seconds are of the search alone.
Writes benchmarks/results/post_training.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.elastic import workbench
from maskfront import FisherSearch, Mrem, SearchResult, Stage
from objectives.bert_method import WeightBits
from objectives.device import quiet_libraries
from objectives.progress import SilentProgress
from objectives.workbench.workbench import Workbench

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "post_training.json"
BITS = ("8-8-8", "4-4-8", "2-2-8", "2-2-4")
ARMS = ("nearest", "REM", "MREM-S", "MREM-P", "QAT")
LEARN = Stage(name="learn", epochs=2, learning_rate=3e-4, loss="prediction+hidden", quantised=True)
KEPT = ("kl", "select", "heldout", "megabytes", "processor_seconds")


def method(arm: str, bits: str, layers: int) -> WeightBits:
    """What an arm does at these W-E-A bits."""
    weights, embeddings, inputs = map(int, bits.split("-"))
    own: dict[str, Any] = {
        "target_ratio": 1.0,
        "weight_bits": weights,
        "embedding_bits": embeddings,
        "input_bits": inputs,
    }
    match arm:
        case "REM":
            return Mrem(**own, modules=layers, teacher_forcing=0.0)
        case "MREM-S":
            return Mrem(**own, teacher_forcing=0.0)
        case "MREM-P":
            return Mrem(**own, parallel=True)
    return FisherSearch(**own, stages=(LEARN,) if arm == "QAT" else ())


def measured(bench: Workbench, searched: WeightBits, seed: int) -> Row:
    """One model: what it keeps of the teacher, and what that took."""
    started = time.process_time()
    [outcome] = type(searched).search(
        [searched], bench.problem, seed=seed, progress=SilentProgress()
    )
    seconds = time.process_time() - started
    assert isinstance(outcome, SearchResult), outcome
    score = bench.score(outcome.model, outcome.architecture)
    train = len(bench.problem.train)
    rows = min(searched.rows, train) if isinstance(searched, Mrem) else train
    return {
        "kl": score.divergence,
        "heldout_kl": score.heldout_divergence,
        "select": score.metric,
        "heldout": score.heldout_metric,
        "megabytes": score.bytes / 1e6,
        "processor_seconds": seconds,
        "rows": rows if isinstance(searched, Mrem) or searched.stages else 0,
    }


def run_all(arguments: argparse.Namespace, console: Console) -> None:
    """All rows that the file does not hold yet."""
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    bench = workbench(arguments.task, arguments.glue, arguments.cache)
    teacher = {
        "teacher_select": bench.unpruned.metric,
        "teacher_heldout": bench.unpruned.heldout_metric,
        "teacher_megabytes": bench.unpruned.bytes / 1e6,
    }
    for seed in arguments.seeds:
        for bits in arguments.bits:
            for arm in arguments.arms:
                key = {"task": arguments.task, "seed": seed, "bits": bits, "arm": arm}
                if any(key.items() <= row.items() for row in rows):
                    continue
                searched = method(arm, bits, bench.problem.cost.shape.layers)
                rows.append({**key, **teacher, **measured(bench, searched, seed)})
                _write(rows)
                console.print(rows[-1])


def _write(rows: list[Row]) -> None:
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "rows": rows,
    }
    unfinished = RESULTS.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(RESULTS)


def table_of(rows: Iterable[Row]) -> Table:
    """Means over the seeds, by task and bits."""
    columns = ("task", "W-E-A", "arm", "rows", "seeds", "KL", "select", "held out", "MB", "seconds")
    table = Table(title="few bits after training; seconds of one processor")
    for column in columns:
        table.add_column(column, justify="right")
    groups: dict[tuple[str, str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["bits"], row["arm"], row["rows"]), []).append(row)
    for key in sorted(groups, key=lambda key: (key[0], BITS.index(key[1]), ARMS.index(key[2]))):
        means = [statistics.fmean(row[name] for row in groups[key]) for name in KEPT]
        cells = [f"{mean:.4f}" for mean in means[:3]] + [f"{mean:.1f}" for mean in means[3:]]
        table.add_row(*map(str, key), str(len(groups[key])), *cells)
    return table


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2", "cola"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the teachers")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--bits", nargs="+", default=BITS, choices=BITS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    console = Console()
    quiet_libraries()
    torch.set_num_threads(1)
    run_all(arguments, console)
    console.print(table_of(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()

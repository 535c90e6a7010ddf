"""One training for all trials beside a training for each, at equal seconds.

MiniLM-L6 is fine-tuned once a task. `alone`: `FisherSearch`, a training of its own for each ratio.
`elastic`: `ElasticSearch`, one training that takes the seconds of so many lone trials (the mean
over the ratios), then a cut for each ratio. Both distil logits and hidden states, on the same rows,
in the same process, in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.elastic --task cola --glue FOLDER --cache FOLDER

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/elastic.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers on the selection split, in nats. Seconds
are those of the processor, which a neighbour changes little: of `elastic` those of its training, of
`alone` those of the trial.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.replayed import chosen
from benchmarks.search_quality import EPOCHS, TEACHER_EPOCHS, measure, task
from maskfront import ElasticSearch, FisherSearch, Stage, Task, Teacher
from objectives.device import quiet_libraries
from objectives.methods.elastic_search import ELASTIC
from objectives.progress import SilentProgress
from objectives.session import Session
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from reports.outer_loop import area
from studies._quickstart_data import minilm, tweets

Row = dict[str, Any]

RATIOS = (0.5, 0.33, 0.25, 0.17, 0.1)
RESULTS = Path(__file__).parent / "results" / "elastic.json"
RATE = 3e-4
"""Of a lone trial."""
PROBE = 1.0
"""Epochs of the training that says how long one takes."""


def workbench(name: str, folder: str | None, cache: Path, *, all_text: bool = False) -> Workbench:
    """Rows, teacher and scores of a task; with `all_text` students learn from the rows beyond train
    too, without their labels."""
    own = (
        Task(name=name, data=tweets, label="sentiment", max_length=48, train=4000, select=1500)
        if folder is None
        else task(name, folder)
    )
    if all_text:
        own = replace(own, unlabelled_split=own.split)
    teacher = Teacher(checkpoint=minilm(), epochs=TEACHER_EPOCHS.get(name, 2))
    return prepare(read_inputs(own, teacher), Session(cache=cache))


def alone(bench: Workbench, ratio: float, epochs: float, seed: int) -> dict[str, Any]:
    """A trial that trains its own student."""
    stage = Stage(name="recover", epochs=epochs, learning_rate=RATE, loss="prediction+hidden")
    method = FisherSearch(target_ratio=ratio, tolerance=0.01, stages=(stage,))
    return measure(bench, method, seed)


def elastic(epochs: float) -> ElasticSearch:
    """The method whose training takes so many epochs."""
    return ElasticSearch(tolerance=0.01, elastic=replace(ELASTIC, epochs=epochs))


def trained(bench: Workbench, method: ElasticSearch, seed: int) -> float:
    """Seconds of the training that all trials share, done afresh."""
    for folder in bench.problem.cache.glob("elastic-*/"):
        shutil.rmtree(folder)
    started = time.process_time()
    list(ElasticSearch.search([method], bench.problem, seed=seed, progress=SilentProgress()))
    return time.process_time() - started


def rows_of(
    bench: Workbench, name: str, seed: int, lone_trials: Iterable[int], known: Sequence[Row]
) -> Iterator[list[Row]]:
    """The rows of a task and a seed that are not known, those of one training together: of lone
    trials first, whose seconds the others get."""
    epochs, common = EPOCHS.get(name, 1.0), {"task": name, "seed": seed}
    own = [row for row in known if common.items() <= row.items()]
    trained(bench, elastic(PROBE / 10), seed)  # what is worked out once a launch is nobody's time
    lone = {row["ratio"]: row for row in own if row["arm"] == "alone"}
    for ratio in RATIOS:
        if ratio not in lone:
            found = of(alone(bench, ratio, epochs, seed))
            lone[ratio] = {**common, "arm": "alone", "lone_trials": 1, "ratio": ratio, **found}
            yield [lone[ratio]]
    mean = statistics.fmean(row["seconds"] for row in lone.values())
    done = {row["lone_trials"] for row in own}
    wanted = sorted(set(lone_trials) - done)
    an_epoch = trained(bench, elastic(PROBE), seed) / PROBE if wanted else 0.0
    for number in wanted:
        method = elastic(number * mean / an_epoch)
        seconds = trained(bench, method, seed)
        found = {
            ratio: measure(bench, replace(method, target_ratio=ratio), seed) for ratio in RATIOS
        }
        yield [
            {
                **common,
                "arm": "elastic",
                "lone_trials": number,
                "ratio": ratio,
                **of(of_ratio),
                "seconds": seconds,
                "epochs": method.elastic.epochs,
                "seconds_of_a_trial": of_ratio["processor_seconds"],
            }
            for ratio, of_ratio in found.items()
        ]


def of(found: dict[str, Any]) -> Row:
    """What a row keeps of a trial."""
    kept = {name: found[name] for name in ("kl", "select", "heldout")}
    return {"seconds": found["processor_seconds"], **kept}


def run(arguments: argparse.Namespace, console: Console) -> None:
    """All rows that the file does not hold yet."""
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    bench = workbench(arguments.task, arguments.glue, arguments.cache)
    for seed in arguments.seeds:
        found = rows_of(bench, arguments.task, seed, arguments.lone_trials, tuple(rows))
        for of_training in found:
            rows += of_training
            _write(rows, bench)
            for row in of_training:
                console.print(row)


def _write(rows: list[dict[str, Any]], bench: Workbench) -> None:
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "device": bench.problem.device,
        "rows": rows,
    }
    unfinished = RESULTS.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(RESULTS)


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Means over the seeds."""
    table = Table(title="one training for all trials, at the seconds of so many lone ones")
    for column in ("task", "arm", "trials' seconds", "ratio", "seeds", "KL", "select", "held out"):
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("task", "arm", "lone_trials", "ratio"))
        groups.setdefault(key, []).append(row)
    for key, group in groups.items():
        means = (
            statistics.fmean(row[name] for row in group) for name in ("kl", "select", "heldout")
        )
        table.add_row(*map(str, key), str(len(group)), *(f"{mean:.4f}" for mean in means))
    return table


def areas_of(rows: list[Row]) -> Table:
    """Means over the seeds of the area under a front, the ratio up to 1 and the metric from 0: of
    the metrics on the selection split, by which the front is chosen, and of those held out."""
    table = Table(title="areas under the fronts")
    for column in ("task", "arm", "trials' seconds", "seeds", "select", "held out"):
        table.add_column(column, justify="right")
    fronts: dict[tuple[Any, ...], dict[int, list[Row]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("task", "arm", "lone_trials"))
        fronts.setdefault(key, {}).setdefault(row["seed"], []).append(row)
    for key, of_seeds in fronts.items():
        means = (
            statistics.fmean(
                area(chosen([(row["select"], row["ratio"], row[split]) for row in front]), 0, 1)
                for front in of_seeds.values()
            )
            for split in ("select", "heldout")
        )
        table.add_row(*map(str, key), str(len(of_seeds)), *(f"{mean:.4f}" for mean in means))
    return table


def main() -> None:
    """Run, or go on, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2", "cola", "rte"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--lone-trials", nargs="+", type=int, default=[6, 12, 24])
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    quiet_libraries()
    run(parser.parse_args(), Console())
    rows = json.loads(RESULTS.read_text())["rows"]
    for table in (table_of(rows), areas_of(rows)):
        Console().print(table)


if __name__ == "__main__":
    main()

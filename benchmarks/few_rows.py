"""Pruning with a handful of rows: what each method makes of 16, 64 or 256 a class, without labels.

MiniLM-L6 is fine-tuned on a task once; then nothing is read but the few rows, from which units are
ranked and weights are fitted:

    plain               the units of most Fisher worth stay, their weights as they are
    kwon                `FisherPruning`: swaps of units, and a factor for each (reads labels)
    fisher, plain       the same units as plain, their weights solved for, each model on its path,
    fisher, CD          with losses on both paths,
    fisher, SCD         or with inputs of both paths mixed
    ziplm               optimal brain surgeon as in ZipLM, layers compared by relative errors
    surgeon, plain      and by what an error does to the answer
    surgeon, CD
    surgeon, SCD        which is `CrossDistillation()`

With `--rows-per-class 0` all train rows are there, of which 1,024 are used, and with `--steps 150`
a distillation on them follows.

    OMP_NUM_THREADS=1 python -m benchmarks.few_rows --cache FOLDER [--task sst2 --glue FOLDER]
        [--seeds 0 1 2] [--rows-per-class 16 64 256] [--ratios 0.75 0.5] [--steps 0 150]
        [--arms plain kwon ...]

Without `--glue` the task is that of the quickstart, "tweets". KL is the divergence from the
teacher's answers on the selection split, in nats; seconds are those of one processor. Writes
benchmarks/results/few_rows.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.elastic import workbench
from maskfront import CrossDistillation, FisherPruning, FisherSearch, SearchResult, Stage
from objectives.compression.reconstruction import held
from objectives.compression.side_by_side import RECONSTRUCTION, side_by_side
from objectives.device import quiet_libraries
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.staged_method import StagedMethod
from objectives.strategies.importance import worth_per_price
from objectives.strategies.surgeon import rises
from objectives.workbench.workbench import Workbench

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "few_rows.json"
BATCH_SIZE = 32
RATE = 3e-4
MIXES: dict[str, dict[str, Any]] = {
    "plain": {"mixes": "inputs", "alpha": 1.0, "beta": 1.0},
    "CD": {"mixes": "losses"},
    "SCD": {"mixes": "inputs", "alpha": 0.75, "beta": 0.75},
}
RANKED = [(f"{ranking}, {mix}", ranking, mix) for ranking in ("fisher", "surgeon") for mix in MIXES]
ARMS = ("plain", "kwon", "ziplm", *(name for name, _, _ in RANKED))
KEPT = ("kl", "select", "heldout", "processor_seconds")


class ByFisher(CrossDistillation):
    """Units by Fisher worth, as `FisherSearch` ranks them."""

    def worth(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """How far the answer moves without a unit while the others stay, per price."""
        return worth_per_price(problem, self.spaces, "logits")


class ZipLm(CrossDistillation):
    """Layers compete by the squared error of their outputs over what it is without any unit."""

    def worth(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """The rise of the relative error at a unit's turn, per price."""
        sizes, price = {"heads": problem.cost.shape.head_dim, "ffn": 1}, problem.cost.of_one_unit()
        worth: dict[str, list[Tensor]] = {space: [] for space in sizes}
        student, batches = problem.student, self._batches(problem, seed)
        for fit in side_by_side(student, student, batches, [RECONSTRUCTION]):
            second = held(fit.second, self.damping)
            rise = rises(fit.weight.double(), second, sizes[fit.space])
            worth[fit.space].append(rise / rise.sum() / price[fit.space])
        return {space: torch.stack(rows) for space, rows in worth.items()}


def method(arm: str, ratio: float, steps: int, rows: int) -> StagedMethod:
    """What an arm does, and then so many steps of distillation on so many rows."""
    stages: tuple[Stage, ...] = ()
    if steps:
        epochs = steps * BATCH_SIZE / rows
        learn = Stage(name="learn", epochs=epochs, learning_rate=RATE, loss="prediction+hidden")
        stages = (learn,)
    own: dict[str, Any] = {
        "target_ratio": ratio,
        "tolerance": 0.01,
        "batch_size": BATCH_SIZE,
        "stages": stages,
    }
    for name, ranking, mix in RANKED:
        if arm == name:
            kind = ByFisher if ranking == "fisher" else CrossDistillation
            return kind(**own, **MIXES[mix])
    if arm == "ziplm":
        return ZipLm(**own, **MIXES["plain"])
    return FisherPruning(**own) if arm == "kwon" else FisherSearch(**own)


def few(problem: Problem, per_class: int, seed: int) -> Problem:
    """The problem with so many train rows of each class, drawn with the seed, and no others."""
    train, generator = problem.train, np.random.default_rng(seed)
    labels = train.labels
    rows = np.concatenate(
        [
            generator.permutation(np.flatnonzero(labels == one))[:per_class]
            for one in np.unique(labels)
        ]
    )
    some = replace(
        train,
        input_ids=[train.input_ids[row] for row in rows],
        token_type_ids=[train.token_type_ids[row] for row in rows],
        labels=labels[rows],
    )
    answers = problem.teacher_logits[torch.from_numpy(rows)]
    return replace(problem, train=some, alpha=some, teacher_logits=answers)


def measured(bench: Workbench, problem: Problem, searched: StagedMethod, seed: int) -> Row:
    """One model: what it keeps of the teacher, and what that took."""
    started = time.process_time()
    [outcome] = type(searched).search([searched], problem, seed=seed, progress=SilentProgress())
    seconds = time.process_time() - started
    assert isinstance(outcome, SearchResult), outcome
    score = bench.score(outcome.model, outcome.architecture)
    return {
        "kl": score.divergence,
        "heldout_kl": score.heldout_divergence,
        "select": score.metric,
        "heldout": score.heldout_metric,
        "reached": score.cost / problem.cost_full,
        "processor_seconds": seconds,
    }


def run(arguments: argparse.Namespace, console: Console) -> None:
    """All rows that the file does not hold yet."""
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    bench = workbench(arguments.task, arguments.glue, arguments.cache)
    teacher = {
        "teacher_select": bench.unpruned.metric,
        "teacher_heldout": bench.unpruned.heldout_metric,
    }
    keys: list[Row] = [
        {
            "task": arguments.task,
            "seed": seed,
            "rows_per_class": number,
            "ratio": ratio,
            "arm": arm,
            "steps": steps,
        }
        for seed in arguments.seeds
        for number in arguments.rows_per_class
        for ratio in arguments.ratios
        for arm in arguments.arms
        for steps in arguments.steps
    ]
    for key in keys:
        if any(key.items() <= row.items() for row in rows):
            continue
        # A problem of its own: what is worked out once a launch is in the seconds of each.
        number = key["rows_per_class"]
        own = few(bench.problem, number, key["seed"]) if number else replace(bench.problem)
        searched = method(key["arm"], key["ratio"], key["steps"], len(own.train))
        rows.append({**key, **teacher, **measured(bench, own, searched, key["seed"])})
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
    """Means over the seeds."""
    table = Table(title="pruning with a few rows; 0: all; seconds of one processor")
    columns = ("task", "rows a class", "ratio", "steps", "arm", "seeds")
    for column in (*columns, "KL", "select", "held out", "seconds"):
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    names = ("task", "rows_per_class", "ratio", "steps", "arm")
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    for key in sorted(groups, key=lambda key: (*key[:4], ARMS.index(key[4]))):
        means = [statistics.fmean(row[name] for row in groups[key]) for name in KEPT]
        cells = [f"{mean:.4f}" for mean in means[:3]] + [f"{means[3]:.0f}"]
        table.add_row(*map(str, key), str(len(groups[key])), *cells)
    return table


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2", "cola"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the teachers")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rows-per-class", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.75, 0.5])
    parser.add_argument("--steps", nargs="+", type=int, default=[0])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    console = Console()
    quiet_libraries()
    torch.set_num_threads(1)
    run(arguments, console)
    console.print(table_of(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()

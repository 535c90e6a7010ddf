"""What a step at several sizes costs: beside their matmuls alone, and beside a step of each alone.

MiniLM-L6 on the quickstart's tweets, 32 rows for each size, logits and hidden states distilled.
`step` is one step of the elastic training. `matmuls` are all matmuls of these sizes, forward and
both of backward, on as many tokens and nothing else. `alone` are steps of students that were cut to
these sizes, one after another, each with an optimiser of its own. Sizes are spread geometrically
from 0.05 of the FLOPs to all; one size is the whole.

    OMP_NUM_THREADS=1 python -m benchmarks.elastic_step --cache FOLDER [--sizes 1 2 3 4 6]

Medians of rounds in which all take turns, in seconds of the processor. Prints a table and writes
benchmarks/results/elastic_step.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.elastic import RATE, elastic, workbench
from maskfront import ElasticSearch, Stage
from objectives.device import matmul_dtype, quiet_libraries
from objectives.measures.budget import units_that_fit
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import matmuls
from objectives.training.population import Population
from objectives.training.stage_training import StageTraining
from objectives.training.teacher_states import keep_states
from objectives.weights.elastic import ElasticTraining, rows_of
from objectives.weights.slices import Order

RESULTS = Path(__file__).parent / "results" / "elastic_step.json"
SMALLEST = 0.05
ROWS = 32
STAGE = Stage(name="elastic", epochs=1, learning_rate=RATE, loss="prediction+hidden")


def architectures(method: ElasticSearch, problem: Problem, count: int) -> list[BertArchitecture]:
    """So many sizes, the whole one last, of highest worth each."""
    worth, cost = method.worth(problem, 0), problem.cost
    found = []
    for number in range(count):
        share = SMALLEST ** (1 - number / (count - 1)) if count > 1 else 1.0
        kept = units_that_fit(worth, cost, limit=share * cost.full)
        masks = {space: mask.tolist() for space, mask in kept.items()}
        found.append(BertArchitecture.from_masks(cost.shape, masks))
    return found


def products(
    sizes: Sequence[BertArchitecture], problem: Problem, length: int, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each matmul of these sizes what enters, the matrix, and a gradient of what comes out."""
    found = []
    for architecture in sizes:
        for one in matmuls(architecture, problem.cost.shape, length):
            batched = () if one.weight else (ROWS,)
            vectors = one.vectors * (ROWS if one.weight else 1)
            shapes = (vectors, one.inputs), (one.inputs, one.outputs), (vectors, one.outputs)
            entering, matrix, gradient = (torch.randn(*batched, *s).to(dtype) for s in shapes)
            found.append((entering, matrix, gradient))
    return found


def multiply(found: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Each forward, and for the gradients of both factors."""
    for entering, matrix, gradient in found:
        entering @ matrix
        gradient @ matrix.mT
        entering.mT @ gradient


def runs_of(problem: Problem, method: ElasticSearch, count: int) -> dict[str, Callable[[], object]]:
    """What takes turns, for so many sizes."""
    dtype = matmul_dtype(method.precision, problem.device)
    sizes = architectures(method, problem, count)
    models = [architecture.widths(problem.cost.shape) for architecture in sizes]
    order = Order.by_scores(problem.cost.shape, method.worth(problem, 0))
    training = ElasticTraining(
        problem, order, models, STAGE, sizes=count, batch_size=ROWS, seed=0, dtype=dtype
    )
    batch = next(training.training.batches(0, SilentProgress()))
    parts = [rows_of(batch, turn, count) for turn in range(count)]
    student = problem.student
    lone = [
        StageTraining(
            problem,
            [0],
            Population.of([cut(student.state_dict(), student.config, architecture)], dtype),
            STAGE,
            [RATE],
            [architecture],
            batch_size=ROWS,
            seed=0,
        )
        for architecture in sizes
    ]

    def alone() -> None:
        for one, part in zip(lone, parts, strict=True):
            one.step(part, {})

    found = products(sizes, problem, batch.input_ids.shape[1], dtype)
    step = partial(training.step, batch, models)
    return {"step": step, "alone": alone, "matmuls": partial(multiply, found)}


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 3, 4, 6])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    quiet_libraries()
    problem, method = workbench("tweets", None, arguments.cache).problem, elastic(1.0)
    keep_states(problem, matmul_dtype(method.precision, problem.device), SilentProgress())
    cells = {
        (count, name): run
        for count in arguments.sizes
        for name, run in runs_of(problem, method, count).items()
    }
    seconds: dict[tuple[int, str], list[float]] = {cell: [] for cell in cells}
    for number in range(arguments.rounds + 1):
        for cell, run in cells.items():
            started = time.process_time()
            run()
            if number:  # the first warms up
                seconds[cell].append(time.process_time() - started)
    table = Table(title=f"a step at several sizes, seconds ({torch.get_num_threads()} threads)")
    for column in ("sizes", "step", "alone", "matmuls", "step / alone", "step / matmuls"):
        table.add_column(column, justify="right")
    rows = []
    for count in arguments.sizes:
        step, alone, least = (
            statistics.median(seconds[count, name]) for name in ("step", "alone", "matmuls")
        )
        rows.append({"sizes": count, "step": step, "alone": alone, "matmuls": least})
        cells_of_row = (step, alone, least, step / alone, step / least)
        table.add_row(str(count), *(f"{value:.2f}" for value in cells_of_row))
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()

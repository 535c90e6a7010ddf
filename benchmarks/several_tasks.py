"""SST-2, CoLA and RTE: each alone, by one cell for all (MAS), on one set of weights (CAS).

MiniLM-L6 is fine-tuned on each task once. Then, by the same number of passes over the rows:

    enas            a search and a training for each task alone
    mas             one search for a cell that serves all, a training for each
    cas             task after task on one set of weights, in the order named
    cas, free       the same without the penalty that keeps what was learnt

    OMP_NUM_THREADS=1 python -m benchmarks.several_tasks --cache FOLDER --glue FOLDER
        [--tasks sst2 cola rte] [--arms enas mas ...] [--seeds 0 1 2] [--passes 2] [--epochs 4]

Forgotten is the metric on the selection split right after a task was learnt, less that in the end.
The passes of `mas` in its search are over the first task; a step is on one batch of each. Writes
benchmarks/results/several_tasks.json search by search and goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import search, teacher_row, workbench
from maskfront import Cas, Enas, Mas
from objectives.workbench.workbench import Workbench

ARMS = ("enas", "mas", "cas", "cas, free")


def method(arm: str, passes: float, epochs: float) -> Enas:
    """What an arm does, with so many passes of search and of training."""
    own: dict[str, Any] = {"search_epochs": passes, "epochs": epochs, "grad_rescale": 1e-2}
    if arm == "enas":
        return Enas(**own)
    if arm == "mas":
        return Mas(**own)
    return Cas(**own, **({} if arm == "cas" else {"sparsity_weight": 0, "orthogonality_weight": 0}))


def measured(own: Enas, benches: Sequence[Workbench], seed: int) -> list[dict[str, Any]]:
    """What one search is worth on each task; seconds are those of all, of one processor."""
    first, *others = benches
    problem = replace(first.problem, beside=tuple(bench.problem for bench in others))
    started = time.process_time()
    found = search(own, problem, seed)
    seconds = time.process_time() - started
    rows = []
    for bench, result in zip(benches, (found, *found.beside), strict=True):
        score = bench.score(result.model, result.architecture)
        rows.append(
            {
                **teacher_row(bench),
                "select": score.metric,
                "heldout": score.heldout_metric,
                "kl": score.divergence,
                "forgotten": result.forgotten or 0.0,
                "cell": " ".join(result.architecture.blocks),
                "processor_seconds": seconds,
            }
        )
    return rows


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(__doc__, seeds=(0,), cache=True)
    parser.set_defaults(threads=1)
    parser.add_argument("--glue", required=True, help="folder of nyu-mll/glue")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "cola", "rte"])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--passes", type=float, default=2, help="of the searches")
    parser.add_argument("--epochs", type=float, default=4, help="of the trainings")
    asked = parsed(parser)
    rows = Rows(asked.out / "several_tasks.json")
    about = {"passes": asked.passes, "epochs": asked.epochs, "order": " ".join(asked.tasks)}
    benches = {name: workbench(name, asked.glue, asked.cache) for name in asked.tasks}
    for seed in asked.seeds:
        for arm in asked.arms:
            together = [[task] for task in asked.tasks] if arm == "enas" else [asked.tasks]
            for tasks in together:
                key = {**about, "arm": arm, "seed": seed}
                if all(rows.has({**key, "task": task}) for task in tasks):
                    continue
                own = method(arm, asked.passes, asked.epochs)
                found = measured(own, [benches[task] for task in tasks], seed)
                for task, row in zip(tasks, found, strict=True):
                    rows.add({**key, "task": task, **row})
    print_means(
        "several tasks in one search",
        [row for row in rows.rows if about.items() <= row.items()],
        ("task", "arm"),
        {"select": ".4f", "heldout": ".4f", "kl": ".4f", "forgotten": ".4f"},
    )


if __name__ == "__main__":
    main()

"""What text without labels gives students: the same steps on the labelled rows and on all text.

MiniLM-L6 is fine-tuned on the labelled rows of a task alone. `labelled` students distil on these
rows, `with text` on these and on others whose labels nobody reads: of the tweets 4,000 rows and all
that are left, of SST-2 10,000 and all that are left; of CoLA and RTE nothing is left. Both take the
same number of steps at the same rates: `elastic` trains one student for all ratios, three sizes a
step with 32 rows each; `alone` one for each ratio, 32 rows a step; `cell` is `conv5 conv5`.

    OMP_NUM_THREADS=1 python -m benchmarks.unlabelled --task sst2 --glue FOLDER --cache FOLDER
        [--times 4] [--arms labelled] [--students alone cell] [--seeds 0 1 2] [--device cuda]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/unlabelled.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers, in nats, on the selection split and
held out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.elastic import elastic
from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, measure, teacher_row, workbench
from maskfront import CellSearch, ElasticSearch, FisherSearch, SearchMethod, Stage

RATIOS = (0.5, 0.25, 0.1)
ARMS = ("labelled", "with text")
BATCH = 32
STEPS = {"elastic": 417, "alone": 375, "cell": 1500}
"""The first are those of the quickstart."""
KEPT = ("kl", "heldout_kl", "select", "heldout", "agreement", "heldout_agreement")


def method(students: str, steps: int, ratio: float, rows: int) -> SearchMethod:
    """Students that take so many steps where train has so many rows."""
    epochs = steps * BATCH / rows
    if students == "cell":
        return CellSearch(epochs=epochs)
    if students == "elastic":
        return replace(elastic(epochs * ElasticSearch().sizes), target_ratio=ratio)
    stage = Stage(name="recover", epochs=epochs, learning_rate=RATE, loss="prediction+hidden")
    return FisherSearch(tolerance=0.01, stages=(stage,), target_ratio=ratio)


def main() -> None:
    """Run, or go on, and print the table."""
    tasks = ("tweets", "sst2", "cola", "rte")
    parser = parser_of(__doc__, tasks=tasks, seeds=(0, 1, 2), cache=True, device=True)
    parser.add_argument("--students", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--times", type=int, default=1, help="so many times the steps")
    asked = parsed(parser)
    rows = Rows(asked.out / "unlabelled.json", asked.device)
    for arm in asked.arms:
        text = arm == "with text"
        bench = workbench(asked.task, asked.glue, asked.cache, all_text=text, device=asked.device)
        there = len(bench.problem.train)
        for seed, students, ratio in product(asked.seeds, asked.students, RATIOS):
            steps = STEPS[students] * asked.times
            key: dict[str, Any] = {"task": asked.task, "arm": arm, "rows": there, "seed": seed}
            key |= {"students": students, "steps": steps}
            key |= {} if students == "cell" else {"ratio": ratio}
            if not rows.has(key):
                found = measure(bench, method(students, steps, ratio, there), seed)
                rows.add({**key, **teacher_row(bench), **kept(found, *KEPT)})
    print_means(
        "the same steps with and without text that nobody labelled",
        rows.rows,
        ("task", "students", "steps", "arm", "ratio"),
        dict.fromkeys(KEPT, ".4f"),
    )


if __name__ == "__main__":
    main()

"""What text without labels gives students: the same steps on the labelled rows and on all text.

MiniLM-L6 is fine-tuned on the labelled rows of a task alone. `labelled` students distil on these
rows, `with text` on these and on others whose labels nobody reads: of the tweets 4,000 rows and all
that are left, of SST-2 10,000 and all that are left. Both take the same number of steps at the same
rates: `elastic` trains one student for all ratios, three sizes a step with 32 rows each; `alone`
one for each ratio, 32 rows a step.

    OMP_NUM_THREADS=1 python -m benchmarks.unlabelled --task sst2 --glue FOLDER --cache FOLDER

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/unlabelled.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers on the selection split, in nats.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from benchmarks.elastic import elastic
from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, measure, workbench
from maskfront import ElasticSearch, FisherSearch, Stage, StagedMethod

RATIOS = (0.5, 0.25, 0.1)
ARMS = ("labelled", "with text")
BATCH = 32
STEPS = {"elastic": 417, "alone": 375}
"""The first are those of the quickstart."""


def methods(rows: int) -> dict[str, StagedMethod]:
    """Elastic and lone students that take their `STEPS` where train has so many rows."""
    of_all = elastic(STEPS["elastic"] * BATCH * ElasticSearch().sizes / rows)
    stage = Stage(
        name="recover",
        epochs=STEPS["alone"] * BATCH / rows,
        learning_rate=RATE,
        loss="prediction+hidden",
    )
    return {"elastic": of_all, "alone": FisherSearch(tolerance=0.01, stages=(stage,))}


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2"), seeds=(0, 1, 2), cache=True)
    parser.add_argument("--students", nargs="+", choices=list(STEPS), default=list(STEPS))
    asked = parsed(parser)
    rows = Rows(asked.out / "unlabelled.json")
    for arm in ARMS:
        bench = workbench(asked.task, asked.glue, asked.cache, all_text=arm == "with text")
        own = methods(len(bench.problem.train))
        for seed, students, ratio in product(asked.seeds, asked.students, RATIOS):
            key = {"task": asked.task, "arm": arm, "seed": seed, "students": students}
            key |= {"ratio": ratio, "steps": STEPS[students]}
            if not rows.has(key):
                found = measure(bench, replace(own[students], target_ratio=ratio), seed)
                rows.add({**key, **kept(found, "kl", "select", "heldout")})
    print_means(
        "the same steps with and without text that nobody labelled",
        rows.rows,
        ("task", "students", "steps", "arm", "ratio"),
        {"kl": ".4f", "select": ".4f", "heldout": ".4f"},
    )


if __name__ == "__main__":
    main()

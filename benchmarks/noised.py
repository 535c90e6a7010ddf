"""What copies of train rows with words drawn anew give a cell: equal steps with and without.

MiniLM-L6 is fine-tuned on a task once. A cell of two convolutions learns from its answers to the
train rows, or to these and `CellSearch.noised` copies of each, three words in ten drawn anew.

    OMP_NUM_THREADS=1 python -m benchmarks.noised --cache FOLDER [--text]
        [--task sst2|cola --glue FOLDER] [--seeds 0 1 2] [--steps 4000] [--copies 0 3]

Without `--glue` the task is that of the quickstart, "tweets"; with `--text` students learn from
text without labels, too. Writes benchmarks/results/noised.json row by row and goes on where it
was stopped; prints the means of the rows there. KL is the divergence from the teacher's answers in
nats, on the selection split and held out; seconds are those of the processor, without the teacher's
answers, which a run makes once.
"""

from __future__ import annotations

from itertools import product

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, workbench
from maskfront import CellSearch
from objectives.methods.cells.cell_search import with_noised
from objectives.progress import SilentProgress

BATCH = 32


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(
        __doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True, device=True
    )
    parser.add_argument("--text", action="store_true", help="rows beyond train, without labels")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--copies", nargs="+", type=int, default=[0, 3])
    asked = parsed(parser)
    rows = Rows(asked.out / "noised.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, all_text=asked.text, device=asked.device)
    there = len(bench.problem.train)
    for seed, copies in product(asked.seeds, asked.copies):
        key = {"task": asked.task, "rows": there, "copies": copies, "seed": seed}
        key["steps"] = asked.steps
        if not rows.has(key):
            with_noised(bench.problem, copies, seed, SilentProgress())
            epochs = asked.steps * BATCH / (there * (1 + copies))
            found = measure(bench, CellSearch(noised=copies, epochs=epochs), seed)
            names = ("kl", "heldout_kl", "select", "heldout", "processor_seconds")
            rows.add({**key, **kept(found, *names)})
    print_means(
        "a cell with noised rows and without",
        rows.rows,
        ("task", "rows", "steps", "copies"),
        {
            **dict.fromkeys(("kl", "heldout_kl", "select", "heldout"), ".4f"),
            "processor_seconds": ".0f",
        },
    )


if __name__ == "__main__":
    main()

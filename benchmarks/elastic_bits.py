"""One training for all sizes and all bits: bits drawn in it, or models rounded after it.

MiniLM-L6 is fine-tuned on a task once. `rounded`: `ElasticSearch` trains in float32 alone.
`drawn`: each size of a step is trained in bits that are drawn with it (after MatQuant, Nair et al.
2025). Both take equal steps of 3 sizes with 32 rows each. Then models of each ratio are cut with
the weights as they were trained, and have so many bits of weights and of embeddings; inputs of few
bits have 8.

    OMP_NUM_THREADS=1 python -m benchmarks.elastic_bits --cache FOLDER [--seeds 0 1 2]
        [--task sst2 --glue FOLDER] [--epochs 10] [--trained-bits 32 8 4 2]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/elastic_bits.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers on the selection split, in nats.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.interpolation import AsTrained
from benchmarks.tasks import kept, measure, teacher_row, workbench
from objectives.methods.elastic.elastic_search import ELASTIC

RATIOS = (0.5, 0.3, 0.1)
BITS = (32, 8, 4, 2)
KEPT = ("kl", "select", "heldout")


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(
        __doc__, tasks=("tweets", "sst2", "cola"), seeds=(0,), cache=True, device=True
    )
    parser.add_argument("--epochs", type=float, default=10.0, help="of the training")
    parser.add_argument("--trained-bits", nargs="+", type=int, default=list(BITS))
    asked = parsed(parser)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    rows = Rows(asked.out / "elastic_bits.json", asked.device)
    elastic = replace(ELASTIC, epochs=asked.epochs)
    for seed, drawn in product(asked.seeds, ((), tuple(asked.trained_bits))):
        common = {"task": asked.task, "seed": seed, "epochs": asked.epochs}
        common["trained_bits"] = " ".join(map(str, drawn)) or "32"
        if sum(common.items() <= row.items() for row in rows.rows) == len(RATIOS) * len(BITS):
            continue
        method = AsTrained(tolerance=0.01, input_bits=8, elastic=elastic, trained_bits=drawn)
        for ratio, bits in product(RATIOS, BITS):
            key = {**common, "ratio": ratio, "bits": bits}
            if not rows.has(key):
                own = replace(method, target_ratio=ratio, weight_bits=bits, embedding_bits=bits)
                found = kept(measure(bench, own, seed), *KEPT)
                rows.add({**key, **found, **teacher_row(bench)})
    print_means(
        "one training for all sizes and bits",
        rows.rows,
        ("task", "epochs", "ratio", "bits", "trained_bits"),
        dict.fromkeys((*KEPT, "teacher_heldout"), ".4f"),
    )


if __name__ == "__main__":
    main()

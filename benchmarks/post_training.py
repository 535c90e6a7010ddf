"""Few bits after training: rounding, reconstruction from a few rows, training with the bits.

MiniLM-L6 is fine-tuned once a task; nothing is cut. Of W-E-A bits, those of weights, embeddings and
of what enters the weights:

    nearest   rounded to the nearest code, no data
    matrices  `Mrem(each="matrix")`, the paper's REM: one weight matrix after another
    REM       `Mrem`, a module for each layer, each on what the quantised ones before it give
    MREM-S    `Mrem`, four modules, one after another
    MREM-P    `Mrem`, four modules at the same time, with teacher forcing
    QAT       `FisherSearch` at ratio 1, distilled with the bits on all train rows

    python -m benchmarks.post_training --task tweets --cache FOLDER [--glue FOLDER]
        [--seeds 0 1 2] [--bits 2-2-8 4-4-8] [--arms nearest matrices REM MREM-S MREM-P QAT]

KL is the divergence from the teacher's answers, in nats. Processor seconds are of the search alone.
Writes benchmarks/results/post_training.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, teacher_row, workbench
from maskfront import FisherSearch, Mrem, Stage
from objectives.pruning.staged_method import StagedMethod

BITS = ("8-8-8", "4-4-8", "2-2-8", "2-2-4")
ARMS = ("nearest", "matrices", "REM", "MREM-S", "MREM-P", "QAT")
LEARN = Stage(name="learn", epochs=2, learning_rate=3e-4, loss="prediction+hidden", quantised=True)
KEPT = ("kl", "heldout_kl", "select", "heldout", "processor_seconds")


def method(arm: str, bits: str, layers: int) -> StagedMethod:
    """What an arm does at these W-E-A bits."""
    weights, embeddings, inputs = map(int, bits.split("-"))
    own: dict[str, Any] = {
        "target_ratio": 1.0,
        "weight_bits": weights,
        "embedding_bits": embeddings,
        "input_bits": inputs,
    }
    match arm:
        case "matrices":
            return Mrem(**own, each="matrix")
        case "REM":
            return Mrem(**own, modules=layers, teacher_forcing=0.0)
        case "MREM-S":
            return Mrem(**own, teacher_forcing=0.0)
        case "MREM-P":
            return Mrem(**own, parallel=True)
    return FisherSearch(**own, stages=(LEARN,) if arm == "QAT" else ())


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(
        __doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True, device=True
    )
    parser.set_defaults(threads=1)
    parser.add_argument("--bits", nargs="+", default=BITS, choices=BITS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    asked = parsed(parser)
    rows = Rows(asked.out / "post_training.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    teacher = {**teacher_row(bench), "teacher_megabytes": bench.unpruned.bytes / 1e6}
    for seed, bits, arm in product(asked.seeds, asked.bits, asked.arms):
        key = {"task": asked.task, "seed": seed, "bits": bits, "arm": arm}
        if rows.has(key):
            continue
        searched = method(arm, bits, bench.problem.shape.layers)
        found = measure(bench, searched, seed)
        megabytes, used = found["bytes"] / 1e6, rows_used(searched, len(bench.problem.train))
        rows.add({**key, **teacher, **kept(found, *KEPT), "megabytes": megabytes, "rows": used})
    print_means(
        "few bits after training; seconds of one processor",
        rows.rows,
        ("task", "bits", "arm", "rows"),
        {
            **{"kl": ".4f", "select": ".4f", "heldout": ".4f"},
            **{"megabytes": ".1f", "processor_seconds": ".1f"},
        },
    )


def rows_used(searched: StagedMethod, train: int) -> int:
    """Rows that the method learns from."""
    if isinstance(searched, Mrem):
        return min(searched.rows, train)
    return train if getattr(searched, "stages", ()) else 0


if __name__ == "__main__":
    main()

"""What is generic compression worth beside the default method, at equal training?

MiniLM-L6 is fine-tuned once a task, brought to a share of its FLOPs, and distilled for 3 epochs:

    fisher                 `FisherSearch`, the default
    low rank               `LowRank`
    magnitude, sensitivity, curvature   `MagnitudePruning` by each criterion
    group lasso            `GroupLasso`, whose penalty takes half of the epochs
    hard, soft             `CrossDistillation` by proximal steps, then as the others
    T=2, T=4               `FisherSearch` at a higher temperature of the distillation
    sparse                 `MagnitudePruning` of single weights: as many FLOPs as before

    python -m benchmarks.generic --task tweets --cache FOLDER [--glue FOLDER]
        [--seeds 0] [--ratios 0.5] [--arms fisher "low rank" ...]

KL is the divergence from the teacher's answers, in nats; before is that without the distillation.
Writes benchmarks/results/generic.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, teacher_row, workbench
from maskfront import CrossDistillation, FisherSearch, GroupLasso, LowRank, MagnitudePruning, Stage
from objectives.staged_method import Staged

LEARN = Stage(name="learn", epochs=3, learning_rate=3e-4, loss="prediction+hidden")
HALF = replace(LEARN, epochs=1.5)
KEPT = ("kl", "heldout_kl", "select", "heldout", "reached", "processor_seconds")
ARMS: dict[str, Staged] = {
    "fisher": FisherSearch(stages=(LEARN,)),
    "low rank": LowRank(stages=(LEARN,)),
    "magnitude": MagnitudePruning(stages=(LEARN,)),
    "sensitivity": MagnitudePruning(stages=(LEARN,), criterion="sensitivity"),
    "curvature": MagnitudePruning(stages=(LEARN,), criterion="curvature"),
    "group lasso": GroupLasso(stages=(replace(HALF, name="shrink", searches=True), HALF)),
    "hard": CrossDistillation(stages=(LEARN,), prox="hard"),
    "soft": CrossDistillation(stages=(LEARN,), prox="soft"),
    "T=2": FisherSearch(stages=(replace(LEARN, temperature=2.0),)),
    "T=4": FisherSearch(stages=(replace(LEARN, temperature=4.0),)),
    "sparse": MagnitudePruning(stages=(LEARN,)),
}


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0,), cache=True)
    parser.set_defaults(threads=1)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    asked = parsed(parser)
    rows = Rows(asked.out / "generic.json")
    bench = workbench(asked.task, asked.glue, asked.cache)
    for seed, ratio, arm in product(asked.seeds, asked.ratios, asked.arms):
        key = {"task": asked.task, "seed": seed, "ratio": ratio, "arm": arm}
        if rows.has(key):
            continue
        own: dict[str, Any] = {"target_ratio": ratio}
        if arm == "sparse":
            own = {"target_ratio": 1.0, "sparsity": 1 - ratio}
        method = replace(ARMS[arm], **own)
        searching = tuple(stage for stage in method.stages if stage.searches)
        before = measure(bench, replace(method, stages=searching), seed)["kl"]
        found = kept(measure(bench, method, seed), *KEPT)
        rows.add({**key, **teacher_row(bench), "before": before, **found})
    print_means(
        "generic compression; seconds of one processor",
        rows.rows,
        ("task", "ratio", "arm"),
        {
            **{"before": ".4f", "kl": ".4f", "heldout_kl": ".4f", "select": ".4f"},
            **{"heldout": ".4f", "reached": ".3f", "processor_seconds": ".1f"},
        },
    )


if __name__ == "__main__":
    main()

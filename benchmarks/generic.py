"""What is generic compression worth beside the default method, at equal training or without any?

MiniLM-L6 is fine-tuned once a task, brought to a share of its FLOPs, and distilled:

    fisher                 `FisherSearch`, the default
    low rank               `LowRank`
    magnitude, sensitivity, curvature   `MagnitudePruning` by each criterion
    group lasso            `GroupLasso`, whose penalty takes half of the epochs
    kwon                   `FisherPruning`
    cross, hard, soft      `CrossDistillation`, in closed form and by proximal steps
    cross, 512 rows        in closed form by so many rows
    T=2, T=4               `FisherSearch` at a higher temperature of the distillation
    sparse                 `MagnitudePruning` of single weights: as many FLOPs as before
    sandwich               `Sandwich`, one attention first and one FFN last
    three losses           `FisherSearch`; logits, hidden states and attention scores at once
    aps-t                  `ApsT`, whose search takes half of the epochs

    python -m benchmarks.generic --task tweets --cache FOLDER [--glue FOLDER]
        [--seeds 0] [--ratios 0.5] [--epochs 3 0] [--arms fisher "low rank" ...]

With 0 epochs nothing is trained. KL is the divergence from the teacher's answers, in nats. Writes
benchmarks/results/generic.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, teacher_row, workbench
from maskfront import (
    ApsT,
    CrossDistillation,
    FisherPruning,
    FisherSearch,
    GroupLasso,
    LowRank,
    MagnitudePruning,
    Sandwich,
    Stage,
    StagedMethod,
)

KEPT = ("kl", "heldout_kl", "select", "heldout", "reached", "processor_seconds")
ARMS: dict[str, StagedMethod | LowRank] = {
    "fisher": FisherSearch(),
    "low rank": LowRank(),
    "magnitude": MagnitudePruning(),
    "sensitivity": MagnitudePruning(criterion="sensitivity"),
    "curvature": MagnitudePruning(criterion="curvature"),
    "group lasso": GroupLasso(),
    "kwon": FisherPruning(),
    "cross": CrossDistillation(),
    "cross, 512 rows": CrossDistillation(rows=512),
    "hard": CrossDistillation(prox="hard"),
    "soft": CrossDistillation(prox="soft"),
    "T=2": FisherSearch(),
    "T=4": FisherSearch(),
    "sparse": MagnitudePruning(),
    "sandwich": Sandwich(),
    "three losses": FisherSearch(),
    "aps-t": ApsT(),
}


def method(arm: str, ratio: float, epochs: float) -> StagedMethod | LowRank:
    """What an arm does."""
    learn = Stage(name="learn", epochs=epochs or 1, learning_rate=3e-4, loss="prediction+hidden")
    stages: tuple[Stage, ...] = (learn,) if epochs else ()
    own: dict[str, Any] = {"target_ratio": ratio}
    match arm:
        case "T=2" | "T=4":
            stages = tuple(replace(stage, temperature=float(arm[-1])) for stage in stages)
        case "sparse":
            own = {"target_ratio": 1.0, "sparsity": 1 - ratio}
        case "three losses":
            stages = tuple(replace(s, loss="prediction+intermediate") for s in stages)
        case "group lasso" | "aps-t" if epochs:
            half = replace(learn, epochs=epochs / 2)
            stages = (replace(half, name="search", searches=True), half)
    return replace(ARMS[arm], stages=stages, **own)


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(
        __doc__, tasks=("tweets", "sst2", "cola"), seeds=(0,), cache=True, device=True
    )
    parser.set_defaults(threads=1)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5])
    parser.add_argument("--epochs", nargs="+", type=float, default=[3.0])
    parser.add_argument("--arms", nargs="+", default=["fisher", "low rank"], choices=ARMS)
    asked = parsed(parser)
    rows = Rows(asked.out / "generic.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    for seed, ratio, epochs, arm in product(asked.seeds, asked.ratios, asked.epochs, asked.arms):
        key = {"task": asked.task, "seed": seed, "ratio": ratio, "epochs": epochs, "arm": arm}
        if rows.has(key):
            continue
        found = measure(bench, method(arm, ratio, epochs), seed)
        rows.add({**key, **teacher_row(bench), **kept(found, *KEPT)})
    print_means(
        "generic compression; seconds of one processor",
        rows.rows,
        ("task", "ratio", "epochs", "arm"),
        {
            **{"kl": ".4f", "heldout_kl": ".4f", "select": ".4f"},
            **{"heldout": ".4f", "reached": ".3f", "processor_seconds": ".1f"},
        },
    )


if __name__ == "__main__":
    main()

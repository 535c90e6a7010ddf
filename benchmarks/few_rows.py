"""Pruning with a handful of rows: what each method makes of 16, 64 or 256 a class, without labels.

MiniLM-L6 is fine-tuned on a task once; then nothing is read but the few rows, from which units are
ranked and weights are fitted:

    plain               the units of highest Fisher score stay, their weights as they are
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

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, measure, teacher_row, workbench
from maskfront import CrossDistillation, FisherPruning, FisherSearch, Stage
from objectives.methods.cross_distillation import rises
from objectives.problem import Problem
from objectives.pruning.importance import scores_per_cost
from objectives.pruning.reconstruction import held
from objectives.pruning.side_by_side import RECONSTRUCTION, side_by_side
from objectives.pruning.staged_method import StagedMethod

BATCH_SIZE = 32
MIXES: dict[str, dict[str, Any]] = {
    "plain": {"mixes": "inputs", "alpha": 1.0, "beta": 1.0},
    "CD": {"mixes": "losses"},
    "SCD": {"mixes": "inputs", "alpha": 0.75, "beta": 0.75},
}
RANKED = [(f"{ranking}, {mix}", ranking, mix) for ranking in ("fisher", "surgeon") for mix in MIXES]
ARMS = ("plain", "kwon", "ziplm", *(name for name, _, _ in RANKED))
KEPT = ("kl", "heldout_kl", "select", "heldout", "reached", "processor_seconds")


class ByFisher(CrossDistillation):
    """Units by Fisher scores, as `FisherSearch` ranks them."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """How far the answer moves without a unit while the others stay, per price."""
        return scores_per_cost(problem, self.spaces, "logits")


class ZipLm(CrossDistillation):
    """Layers compete by the squared error of their outputs over what it is without any unit."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """The rise of the relative error at a unit's turn, per price."""
        sizes, price = (
            {"heads": problem.shape.head_dim, "ffn": 1},
            problem.budget.cost.of_one_unit(),
        )
        scores: dict[str, list[Tensor]] = {space: [] for space in sizes}
        student, batches = problem.student, self._batches(problem, seed)
        for fit in side_by_side(student, student, batches, [RECONSTRUCTION]):
            second = held(fit.second, self.damping)
            rise = rises(fit.weight.double(), second, sizes[fit.space])
            scores[fit.space].append(rise / rise.sum() / price[fit.space])
        return {space: torch.stack(rows) for space, rows in scores.items()}


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
    some = train.at(rows)
    answers = problem.teacher_logits[torch.from_numpy(rows)]
    return replace(problem, train=some, alpha=some, teacher_logits=answers, alpha_logits=answers)


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(
        __doc__, tasks=("tweets", "sst2", "cola"), seeds=(0,), cache=True, device=True
    )
    parser.set_defaults(threads=1)
    parser.add_argument("--rows-per-class", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.75, 0.5])
    parser.add_argument("--steps", nargs="+", type=int, default=[0])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    asked = parsed(parser)
    rows = Rows(asked.out / "few_rows.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    settings = product(asked.seeds, asked.rows_per_class, asked.ratios, asked.arms, asked.steps)
    for seed, number, ratio, arm, steps in settings:
        key = {"task": asked.task, "seed": seed, "rows_per_class": number}
        key |= {"ratio": ratio, "arm": arm, "steps": steps}
        if rows.has(key):
            continue
        # A problem of its own: what is worked out once a launch is in the seconds of each.
        problem = few(bench.problem, number, seed) if number else replace(bench.problem)
        found = measure(bench, method(arm, ratio, steps, len(problem.train)), seed, problem)
        rows.add({**key, **teacher_row(bench), **kept(found, *KEPT)})
    print_means(
        "pruning with a few rows; 0: all",
        rows.rows,
        ("task", "rows_per_class", "ratio", "steps", "arm"),
        {"kl": ".4f", "select": ".4f", "heldout": ".4f", "processor_seconds": ".0f"},
    )


if __name__ == "__main__":
    main()

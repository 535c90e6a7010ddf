"""Does a tuned gradient search over masks pay? One study a method, as many trials each.

MiniLM-L6 is fine-tuned on a task once. Each method gets a study of its own, tuned by TPE on the
divergence from the teacher (KL) and FLOPs:

    MaskSearch             weights and masks learn together; lambda, R, t and kappa are drawn
    ElasticSearch          one training for all trials, masks searched on it; the same four
    ElasticSearch, ranked  the same training, one ranking; R is drawn
    FisherSearch           one ranking, cut, distilled; R and the power of the cost are drawn
    CrossDistillation      one ranking, solved by least squares, distilled; R is drawn

A trial of MaskSearch searches for a third of `--epochs` and recovers for the rest; FisherSearch and
CrossDistillation recover for all of them. `--elastic-epochs` are those of the shared training.

    OMP_NUM_THREADS=1 python -m benchmarks.tuned --runs FOLDER [--task sst2|cola --glue FOLDER]
        [--trials 24] [--seeds 0 1 2] [--population 2] [--device cuda]

The runs lie in FOLDER and go on where they were stopped. Writes benchmarks/results/mask_search.json
and prints its table: at each ratio the model that is nearest to the teacher on the selection split
among those that cost no more, and its divergence and metric held out. Seconds are those in which
trials ran. A second table has Optuna's importances over the trials of all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.importance import get_param_importances
from optuna.trial import create_trial
from rich.console import Console

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means, sharing_cache
from benchmarks.tasks import RATE, task_of, teacher_for
from maskfront import (
    CrossDistillation,
    ElasticSearch,
    FisherSearch,
    MaskSearch,
    Run,
    SearchMethod,
    Stage,
    Study,
    Task,
    launch,
)
from objectives.methods.elastic.elastic_search import ELASTIC
from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import RunRecord, read_run

RATIOS = (0.1, 0.2, 0.3, 0.5)
FIRST = (0.5, 0.1, 0.3, 0.2)
LOOP = {
    "flops_weight": FloatDistribution(0.02, 0.5, log=True),
    "tolerance": FloatDistribution(0.01, 0.1, log=True),
    "grad_rescale": FloatDistribution(0.5, 20, log=True),
}
MASKS = {
    "flops_weight": FloatDistribution(0.3, 30, log=True),
    "tolerance": FloatDistribution(0.01, 0.1, log=True),
}
"""Beside kappa, whose range goes by the steps of the search."""


@dataclass(frozen=True)
class Entry:
    """A method and the hyperparameters of its study beside the target ratio."""

    method: SearchMethod
    space: Mapping[str, BaseDistribution]


def entries(epochs: float, elastic_epochs: float, rows: int) -> dict[str, Entry]:
    """The methods by name; `rows` are those of train."""
    learns: dict[str, Any] = {"learning_rate": RATE, "loss": "prediction+hidden"}
    recover, searched = Stage(name="recover", epochs=epochs, **learns), epochs / 3
    search = Stage(name="search", epochs=searched, searches=True, schedule="constant", **learns)
    steps = searched * rows / 32
    reach = {"grad_rescale": FloatDistribution(5 / steps, 50 / steps, log=True)}
    elastic = ElasticSearch(elastic=replace(ELASTIC, epochs=elastic_epochs))
    masks = MaskSearch(stages=(search, replace(recover, epochs=epochs - searched)))
    power = {"cost_power": FloatDistribution(0.6, 1.2)}
    return {
        "MaskSearch": Entry(masks, {**MASKS, **reach}),
        "ElasticSearch": Entry(elastic, LOOP),
        "ElasticSearch, ranked": Entry(replace(elastic, search_steps=0), {}),
        "FisherSearch": Entry(FisherSearch(stages=(recover,)), power),
        "CrossDistillation": Entry(CrossDistillation(rows=256, stages=(recover,)), {}),
    }


def run_of(entry: Entry, name: str, task: Task, seed: int, asked: Any) -> Run:
    """The finished study of a method, in a folder of its own with the task's one cache."""
    folder, cache = asked.runs / f"{name}-{seed}", asked.runs / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    study = Study(
        name=f"tuned-{seed}",
        task=task,
        teacher=teacher_for(task.name),
        method=entry.method,
        space={"target_ratio": FloatDistribution(0.08, 0.6, log=True), **entry.space},
        first=tuple({"target_ratio": ratio} for ratio in FIRST),
        objective="divergence",
        trials=asked.trials,
        population=asked.population,
        seed=seed,
    )
    quiet = Console(quiet=True)
    with sharing_cache(cache, folder):
        return launch(study, out=folder, report=False, console=quiet, device=asked.device)


def rows_of(run: Run, common: Row) -> list[Row]:
    """What a front has at each ratio."""
    seconds = BusyClock(run.trials)(max(t.ended for t in run.finished if t.ended is not None))
    rows = []
    for ratio in RATIOS:
        inside = [t.result for t in run.finished if t.feasible and t.result.ratio <= 1.02 * ratio]
        best = min(inside, key=lambda result: result.divergence)
        rows.append(
            {
                **common,
                "trials": len(run.finished),
                "ratio": ratio,
                "divergence": best.divergence,
                "heldout_divergence": best.heldout_divergence,
                "heldout_metric": best.heldout_metric,
                "seconds": seconds,
            }
        )
    return rows


def importances(runs: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """PED-ANOVA over the trials of several studies: of the divergence, and of it at equal cost.

    At equal cost it is log KL less what a straight line over the log of the ratio predicts.
    """
    trials = [trial for run in runs for trial in run.finished]
    logs = np.log([(trial.result.ratio, trial.result.divergence) for trial in trials])
    left = logs[:, 1] - np.polyval(np.polyfit(logs[:, 0], logs[:, 1], 1), logs[:, 0])
    shares = {}
    for name, values in (("divergence", logs[:, 1]), ("at equal cost", left)):
        study = optuna.create_study()
        for trial, value in zip(trials, values, strict=True):
            study.add_trial(
                create_trial(
                    value=float(value), params=dict(trial.knobs), distributions=runs[0].space
                )
            )
        shares[name] = get_param_importances(study)
    return shares


def main() -> None:
    """Run, or go on, and print the tables."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), device=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--population", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=1.5)
    parser.add_argument("--elastic-epochs", type=float, default=8)
    parser.add_argument("--methods", nargs="+")
    asked = parsed(parser)
    task = task_of(asked.task, asked.glue)
    known = entries(asked.epochs, asked.elastic_epochs, task.train or 7000)
    asked.runs /= asked.task
    rows = Rows(asked.out / "mask_search.json")
    for seed in asked.seeds:
        for name in asked.methods or known:
            about = {"task": asked.task, "seed": seed, "method": name, "device": asked.device}
            if not rows.has({**about, "trials": asked.trials}):
                rows.add(*rows_of(run_of(known[name], name, task, seed, asked), about))
    for name, entry in known.items():
        folders = [asked.runs / f"{name}-{seed}" for seed in asked.seeds]
        if entry.space and all(folder.is_dir() for folder in folders):
            for of, shares in importances([read_run(folder) for folder in folders]).items():
                texts = ", ".join(f"{knob} {share:.0%}" for knob, share in shares.items())
                Console().print(f"{asked.task}, {name}, {of}: {texts}")
    print_means(
        "tuned studies",
        rows.rows,
        ("task", "method", "trials", "ratio"),
        {
            "divergence": ".4f",
            "heldout_divergence": ".4f",
            "heldout_metric": ".3f",
            "seconds": ".0f",
        },
    )


if __name__ == "__main__":
    main()

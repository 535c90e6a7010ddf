"""Which Optuna sampler serves the outer loop: hypervolume after few trials, asked in batches.

A stand-in for a study, since 20 seeds of real ones would take days: four knobs with the ranges of
the quickstart, metric and FLOPs ratio shaped like those of real trials (the metric saturates in R,
suffers from a FLOPs weight or a step size far from its best, and is noisy), one constraint. It
compares samplers on this shape and says nothing about BERT.

    python -m benchmarks.samplers [--seeds 20]

Prints a table and writes benchmarks/results/samplers.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from rich.console import Console
from rich.table import Table

from orchestrator.sampler import make_sampler

SPACE = {
    "flops_weight": FloatDistribution(0.1, 10, log=True),
    "target_ratio": FloatDistribution(0.1, 1, log=True),
    "tolerance": FloatDistribution(0.01, 0.1, log=True),
    "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
}
BATCH = 4
TRIALS = (12, 24, 48)
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "NSGA-II": lambda seed: NSGAIISampler(population_size=8, seed=seed),
    "TPE, multivariate, no liar": lambda seed: TPESampler(
        seed=seed, n_startup_trials=8, multivariate=True, constant_liar=False
    ),
    "TPE, multivariate": lambda seed: TPESampler(
        seed=seed, n_startup_trials=8, multivariate=True, constant_liar=True
    ),
    "TPE, no liar": lambda seed: TPESampler(
        seed=seed, n_startup_trials=8, multivariate=False, constant_liar=False
    ),
    "TPE (ours)": lambda seed: make_sampler(seed, trials_so_far=0, population=BATCH),
}


def outcome(knobs: dict[str, float], noise: np.random.Generator) -> tuple[float, float, float]:
    """Metric, FLOPs ratio and violation of a pretended trial."""
    weight, ratio, tolerance, step = (knobs[name] for name in SPACE)
    missed = 0.04 * abs(math.log10(weight)) * math.log10(step / 0.1)
    reached = min(1.0, ratio * (1 + missed))
    best = 0.85 - 0.35 * math.exp(-9 * reached)
    harm = 0.03 * math.log10(step / 0.1) ** 2 + 0.015 * math.log10(weight / 0.7) ** 2
    metric = best - harm * (1.2 - reached) + noise.normal(0, 0.006)
    return metric, reached, abs(reached - ratio) - tolerance * ratio


def hypervolume(points: list[tuple[float, float]]) -> float:
    """Area dominated by (metric, ratio) points above metric 0.5 and below ratio 1."""
    area, best = 0.0, 0.5
    for metric, ratio in sorted(points, key=lambda point: point[1]):
        if metric > best:
            area += (metric - best) * (1.0 - ratio)
            best = metric
    return area


def run(sampler: BaseSampler, seed: int) -> tuple[list[float], float]:
    """Hypervolume after each number of TRIALS, and the milliseconds of one ask."""
    noise = np.random.default_rng(seed)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    points: list[tuple[float, float]] = []
    volumes, asking = [], 0.0
    while len(study.trials) < max(TRIALS):
        started = time.perf_counter()
        batch = [study.ask(dict(SPACE)) for _ in range(BATCH)]
        asking += time.perf_counter() - started
        for trial in batch:
            metric, ratio, violation = outcome(trial.params, noise)
            trial.set_constraint("budget", violation)
            study.tell(trial, [metric, ratio])
            if violation <= 0:
                points.append((metric, ratio))
        if len(study.trials) in TRIALS:
            volumes.append(hypervolume(points))
    return volumes, 1000 * asking / max(TRIALS)


def main() -> None:
    """Run every sampler on every seed; print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    table = Table("sampler", *(f"after {n}" for n in TRIALS), "ms an ask")
    rows = []
    for name, make in SAMPLERS.items():
        results = [run(make(seed), seed) for seed in seeds]
        columns = list(zip(*(volumes for volumes, _ in results), strict=True))
        quartiles = [statistics.quantiles(column, n=4) for column in columns]
        milliseconds = statistics.median(ms for _, ms in results)
        rows.append(
            {
                "sampler": name,
                "hypervolume_quartiles": dict(zip(map(str, TRIALS), quartiles, strict=True)),
                "ms_per_ask": milliseconds,
            }
        )
        table.add_row(
            name,
            *(f"{q[1]:.4f}\n{q[0]:.4f} .. {q[2]:.4f}" for q in quartiles),
            f"{milliseconds:.1f}",
        )
    Console(width=110).print(table)
    target = Path(__file__).parent / "results" / "samplers.json"
    target.parent.mkdir(exist_ok=True)
    document = {"optuna": optuna.__version__, "seeds": len(seeds), "batch": BATCH, "rows": rows}
    target.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

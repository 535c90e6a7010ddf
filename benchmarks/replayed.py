"""Which sampler serves the outer loop: replayed real trials.

benchmarks/record_trials.py recorded them, benchmarks/replay.py answers for any knobs. A study asks
in populations of 4, as ours do, and its trials train one after another, as on a CPU. The
hypervolume is the area under the expected metrics of the trials on its front, above the worst
recorded metric of a trial that learned and below ratio 1: luck on the selection split earns
nothing, neither for a trial nor for the choice of one.

    python -m benchmarks.replayed [--seeds 20] [--gp-seeds 20]

Prints a table and writes benchmarks/results/replayed.json. GP takes half a second an ask, the
others milliseconds: it may have fewer seeds, or none.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import optuna
from rich.console import Console
from rich.table import Table

from benchmarks.record_trials import RESULTS
from benchmarks.record_trials import study as recorded
from benchmarks.replay import Replay
from orchestrator.sampler import SamplerName, make_sampler
from orchestrator.workers.claims import draw
from reports.outer_loop import area

BATCH = 4
TRIALS = (12, 24, 48)


@dataclass
class Replayed:
    """A study on replayed trials."""

    replay: Replay
    sampler: SamplerName
    seed: int
    asking: float = 0.0
    """Seconds."""
    finished: list[tuple[float, float, float]] = field(default_factory=list)
    """Metric, ratio and expected metric."""

    def __iter__(self) -> Iterator[int]:
        """Trials for ever; after each the number of trials so far."""
        noise = np.random.default_rng(self.seed)
        sampler = make_sampler(self.seed, 0, BATCH, name=self.sampler)
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        while True:
            started = time.perf_counter()
            batch = [study.ask() for _ in range(BATCH)]
            for trial in batch:
                draw(trial, recorded.space)
            self.asking += time.perf_counter() - started
            for trial in batch:
                study.tell(trial, self._train(trial.params, noise))
                yield trial.number + 1

    def _train(self, knobs: dict[str, Any], noise: np.random.Generator) -> list[float]:
        """Metric and ratio at the end."""
        (curve, expected), ratio = self.replay.curve(knobs, noise), knobs["target_ratio"]
        self.finished.append((float(curve[-1]), ratio, expected))
        return [float(curve[-1]), ratio]

    @property
    def hypervolume(self) -> float:
        """Of the expected metrics of the trials on the front that the study sees."""
        return area(chosen(self.finished), self.replay.worst, 1.0)


def chosen(trials: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """The ratios at which the trial to take changes, and what the new one is worth.

    Of each trial the metric by which it is chosen, its ratio and what it is worth.
    """
    front, best = [], -math.inf
    for metric, ratio, worth in sorted(trials, key=lambda row: (row[1], -row[0])):
        if metric > best:
            front.append((ratio, worth))
            best = metric
    return front


def by_trials(replay: Replay, sampler: SamplerName, seed: int) -> tuple[list[float], float]:
    """Hypervolume after each number of TRIALS, and the milliseconds of one ask."""
    study, volumes = Replayed(replay, sampler, seed), []
    for trials in study:
        if trials in TRIALS:
            volumes.append(study.hypervolume)
        if trials == max(TRIALS):
            break
    return volumes, 1000 * study.asking / max(TRIALS)


def compare_samplers(
    replay: Replay, seeds: Mapping[SamplerName, int], console: Console
) -> list[dict[str, Any]]:
    """Hypervolume against trials."""
    table = Table("sampler", *(f"after {n}" for n in TRIALS), "ms an ask")
    rows = []
    for sampler, count in seeds.items():
        results = [by_trials(replay, sampler, seed) for seed in range(count)]
        columns = list(zip(*(volumes for volumes, _ in results), strict=True))
        quartiles = [statistics.quantiles(column, n=4) for column in columns]
        milliseconds = statistics.median(ms for _, ms in results)
        rows.append(
            {
                "sampler": sampler,
                "seeds": count,
                "hypervolumes": dict(zip(map(str, TRIALS), columns, strict=True)),
                "ms_per_ask": milliseconds,
            }
        )
        cells = [f"{q[1]:.4f}\n{q[0]:.4f} .. {q[2]:.4f}" for q in quartiles]
        table.add_row(f"{sampler}, {count} seeds", *cells, f"{milliseconds:.1f}")
    console.print(table)
    return rows


def main() -> None:
    """Replay every sampler on every seed; print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--gp-seeds", type=int, default=20)
    options = parser.parse_args()

    counts: dict[SamplerName, int] = dict.fromkeys(get_args(SamplerName), options.seeds)
    counts["gp"] = options.gp_seeds
    counts = {name: count for name, count in counts.items() if count}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    console, replay = Console(width=110), Replay(RESULTS)
    console.print(
        f"{replay.trials} recorded trials, {replay.learns.sum()} of which learn (misjudged, left "
        f"out: {replay.misjudged}); final metric of these {replay.worst:.3f} to "
        f"{replay.metrics[:, -1].max():.3f} (unpruned {replay.unpruned:.3f}), standard deviation "
        f"{replay.spread:.4f}; left out, one is missed by {replay.error:.4f}; a ratio its target "
        f"by {replay.ratio_error:.2%} at most; {replay.outside} outside budget"
    )
    document = {
        "optuna": optuna.__version__,
        "recorded": {
            "trials": replay.trials,
            "learn": int(replay.learns.sum()),
            "misjudged": replay.misjudged,
            "metric_deviation": replay.spread,
            "surrogate_error": replay.error,
        },
        "batch": BATCH,
        "samplers": compare_samplers(replay, counts, console),
    }
    target = Path(__file__).parent / "results" / "replayed.json"
    target.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

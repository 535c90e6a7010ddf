"""Which sampler serves the outer loop, and what early stopping saves it: replayed real trials.

benchmarks/record_trials.py recorded them, benchmarks/replay.py answers for any knobs. A study asks
in populations of 4, as ours do, and its trials train one after another, as on a CPU. The
hypervolume is the area under the expected metrics of the trials on its front, above the worst
recorded metric of a trial that learned and below ratio 1: luck on the selection split earns
nothing, neither for a trial nor for the choice of one.

    python -m benchmarks.replayed [--seeds 20] [--stopping-seeds 10]
                                  [--gp-seeds 20] [--gp-stopping-seeds 10]

Prints two tables and writes benchmarks/results/replayed.json. GP takes half a second an ask, the
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
from optuna.trial import TrialState
from rich.console import Console
from rich.table import Table

from benchmarks.record_trials import RESULTS
from benchmarks.record_trials import study as recorded
from benchmarks.replay import Replay
from orchestrator.early_stopping import EarlyStopping, Hurdles, Point, SuccessiveHalving
from orchestrator.sampler import SamplerName, make_sampler
from orchestrator.workers.claims import draw
from reports.outer_loop import area

BATCH = 4
TRIALS = (12, 24, 48)
BUDGET = 32
"""Of a study with early stopping, in whole trainings."""
STEPS = 4
"""Rungs, the end included."""
POLICIES: Mapping[str, EarlyStopping | None] = {
    "none": None,
    "halving 1/4, 1/2; three quarters": SuccessiveHalving(rungs=(0.25, 0.5), keep=0.75),
    "halving 1/4, 1/2; half": SuccessiveHalving(rungs=(0.25, 0.5), keep=0.5),
    "halving 1/4, 1/2; a third": SuccessiveHalving(rungs=(0.25, 0.5), keep=1 / 3),
    "hurdles 1/4, 1/2": Hurdles(rungs=(0.25, 0.5)),
}


@dataclass
class Replayed:
    """A study on replayed trials."""

    replay: Replay
    sampler: SamplerName
    policy: EarlyStopping | None
    seed: int
    spent: float = 0.0
    """Training so far, in whole trainings."""
    asking: float = 0.0
    """Seconds."""
    finished: list[tuple[float, float, float]] = field(default_factory=list)
    """Metric, ratio and expected metric."""
    rungs: dict[float, list[Point]] = field(default_factory=dict)

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
                values = self._train(trial.params, noise)
                if values is None:
                    study.tell(trial, state=TrialState.PRUNED)
                else:
                    study.tell(trial, values)
                yield trial.number + 1

    def _train(self, knobs: dict[str, Any], noise: np.random.Generator) -> list[float] | None:
        """Metric and ratio at the end; None if the trial is stopped."""
        (curve, expected), ratio = self.replay.curve(knobs, noise), knobs["target_ratio"]
        for share in self.policy.rungs if self.policy else ():
            own = float(curve[round(share * STEPS) - 1]), ratio
            rung = self.rungs.setdefault(share, [])
            rung.append(own)
            if self.policy and self.policy.stops(own, rung):
                self.spent += share
                return None
        self.spent += 1
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
    study, volumes = Replayed(replay, sampler, None, seed), []
    for trials in study:
        if trials in TRIALS:
            volumes.append(study.hypervolume)
        if trials == max(TRIALS):
            break
    return volumes, 1000 * study.asking / max(TRIALS)


def by_training(
    replay: Replay, sampler: SamplerName, policy: EarlyStopping | None, seed: int
) -> tuple[list[tuple[float, float]], int]:
    """Training spent and hypervolume after each trial up to the BUDGET, and the trials."""
    study, rows = Replayed(replay, sampler, policy, seed), [(0.0, 0.0)]
    for _ in study:
        if study.spent > BUDGET:
            break
        rows.append((study.spent, study.hypervolume))
    return rows, len(rows) - 1


def reached(rows: Sequence[tuple[float, float]], volume: float) -> float:
    """Training after which the hypervolume was this large; infinite if it never was."""
    return next((spent for spent, own in rows if own >= volume), float("inf"))


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


def compare_policies(
    replay: Replay, seeds: Mapping[SamplerName, int], console: Console
) -> list[dict[str, Any]]:
    """What early stopping saves each sampler, beside the same seeds without it."""
    table = Table(
        "sampler", "policy", "trials", f"hypervolume at {BUDGET} trainings", "share to reach none's"
    )
    rows = []
    for sampler, seen in seeds.items():
        ends: list[float] = []
        for name, policy in POLICIES.items():
            results = [by_training(replay, sampler, policy, seed) for seed in range(seen)]
            volumes = [curve[-1][1] for curve, _ in results]
            ends = ends or volumes
            shares = [
                reached(curve, end) / BUDGET for (curve, _), end in zip(results, ends, strict=True)
            ]
            trials = statistics.median(count for _, count in results)
            gain = statistics.median(own / end - 1 for own, end in zip(volumes, ends, strict=True))
            better = sum(own > end for own, end in zip(volumes, ends, strict=True))
            share = statistics.median(shares)
            rows.append(
                {
                    "sampler": sampler,
                    "policy": name,
                    "trials": trials,
                    "hypervolumes": volumes,
                    "median_gain": gain,
                    "seeds_better": better,
                    "share_of_training": [None if np.isinf(one) else one for one in shares],
                }
            )
            table.add_row(
                sampler,
                name,
                f"{trials:.0f}",
                f"{statistics.median(volumes):.4f}"
                + (f" ({gain:+.1%}, {better} of {seen} better)" if policy else ""),
                "never" if np.isinf(share) else f"{share:.2f}",
            )
    console.print(table)
    return rows


def main() -> None:
    """Replay every sampler and policy on every seed; print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--stopping-seeds", type=int, default=10)
    parser.add_argument("--gp-seeds", type=int, default=20)
    parser.add_argument("--gp-stopping-seeds", type=int, default=10)
    options = parser.parse_args()

    def seeds(most: int, of_gp: int) -> dict[SamplerName, int]:
        counts = {name: of_gp if name == "gp" else most for name in get_args(SamplerName)}
        return {name: count for name, count in counts.items() if count}

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
        "samplers": compare_samplers(replay, seeds(options.seeds, options.gp_seeds), console),
        "budget": BUDGET,
        "policies": compare_policies(
            replay, seeds(options.stopping_seeds, options.gp_stopping_seeds), console
        ),
    }
    target = Path(__file__).parent / "results" / "replayed.json"
    target.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

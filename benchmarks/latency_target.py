"""A study that counts milliseconds against one that counts FLOPs: which front is the faster?

Two studies of the quickstart's task, alike in all but `cost`: the first minimises FLOPs, the second
the latency of one text of 128 tokens from a table measured on this machine. `FisherSearch` cuts at
once, so that the choice of units differs only by the prices. Then every model of both fronts is
exported and timed in one run, models taking turns.

    python -m benchmarks.latency_target OUT [--trials 12] [--seeds 0] [--threads 1]

Run folders go to OUT (a run there is continued). Prints, for each loss of metric that one may
accept, the fewest milliseconds of both; writes benchmarks/results/latency_target-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from optuna.distributions import FloatDistribution
from rich.console import Console
from rich.table import Table

from maskfront import Study
from objectives.delivery.bench import UNPRUNED, bench
from objectives.device import quiet_libraries
from objectives.measures.cost import CostName
from objectives.methods.fisher_search import FisherSearch
from objectives.training.stages import Stage
from orchestrator.runs.records import RunRecord
from orchestrator.workers.loop import run_study
from reports.exporting.export import export
from reports.timings import timings_document
from studies.quickstart import study as quickstart

LENGTH = 128
LOSSES = (0.01, 0.02, 0.03, 0.05, 0.08)
"""Of the unpruned model's metric."""
COSTS: tuple[CostName, ...] = ("flops", "latency")


def study(cost: CostName, seed: int, trials: int) -> Study:
    recover = Stage(name="recover", epochs=0.6, learning_rate=3e-4, loss="prediction+hidden")
    return replace(
        quickstart,
        name=f"{cost}-{seed}",
        method=FisherSearch(stages=(recover,)),
        space={
            "target_ratio": FloatDistribution(0.1, 1, log=True),
            "flops_weight": FloatDistribution(0.5, 1.5),
        },
        first=tuple({"target_ratio": ratio} for ratio in (0.8, 0.5, 0.3, 0.2)),
        cost=cost,
        seq_len=LENGTH,
        trials=trials,
        seed=seed,
    )


def run_both(out: Path, seed: int, trials: int) -> list[RunRecord]:
    """The second study begins with the teacher of the first."""
    runs: list[RunRecord] = []
    for cost in COSTS:
        folder = out / f"{cost}-{seed}"
        if runs and not folder.exists():
            shutil.copytree(runs[0].folder / "cache", folder / "cache")
        runs.append(run_study(study(cost, seed, trials), out=folder))
    return runs


def measure(runs: list[RunRecord], threads: int, rounds: int, console: Console) -> dict[str, Any]:
    """Every model of the fronts in milliseconds, with its metric."""
    with TemporaryDirectory() as scratch:
        models = {}
        for run in runs:
            for trial in run.front:
                folder = Path(scratch) / f"{run.name}#{trial.number}"
                export(run, trial.number, folder, onnx=True)
                models[folder.name] = (folder, run, trial.result)
        timed = bench(
            [folder for folder, *_ in models.values()],
            batches=[1],
            lengths=[LENGTH],
            engines=("eager", "onnxruntime"),
            rounds=rounds,
            threads=threads,
            say=console.print,
        )
    named = tuple(replace(timing, model=Path(timing.model).name) for timing in timed.timings)
    document = timings_document(replace(timed, timings=named))
    document["teacher_metric"] = {run.name: run.unpruned.metric for run in runs}
    for row in document["timings"]:
        if row["model"] != UNPRUNED:
            _, run, result = models[row["model"]]
            row |= {
                "study": run.name,
                "metric": result.metric,
                "heldout_metric": result.heldout_metric,
            }
    return document


def fewest(document: dict[str, Any], engine: str, name: str, loss: float) -> float:
    """Milliseconds of the fastest model of a study's front that loses no more than this share.

    The unpruned model is one of every front.
    """
    floor = document["teacher_metric"][name] * (1 - loss)
    return min(
        row["median"]
        for row in document["timings"]
        if row["engine"] == engine
        and (row["model"] == UNPRUNED or (row["study"] == name and row["metric"] >= floor))
    )


def table(document: dict[str, Any], seeds: list[int]) -> Table:
    """For each loss allowed the milliseconds of both studies, and how much the second gains."""
    columns = [f"seed {seed}: flops, latency" for seed in seeds]
    printed = Table("engine", "loss allowed", *columns, "times as fast", title="fewest ms")
    for engine in dict.fromkeys(row["engine"] for row in document["timings"]):
        every = []
        for loss in LOSSES:
            pairs = [
                [fewest(document, engine, f"{cost}-{seed}", loss) for cost in COSTS]
                for seed in seeds
            ]
            gains = [flops / latency for flops, latency in pairs]
            cells = [f"{flops:.2f}, {latency:.2f}" for flops, latency in pairs]
            printed.add_row(engine, f"{loss:.0%}", *cells, f"{geometric_mean(gains):.3f}")
            every += gains
        printed.add_row(engine, "all", *[""] * len(seeds), f"{geometric_mean(every):.3f}")
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(options.threads)
    console = Console(width=130)
    runs = [run for seed in options.seeds for run in run_both(options.out, seed, options.trials)]
    document = measure(runs, options.threads, options.rounds, console)
    console.print(table(document, options.seeds))
    out = Path(__file__).parent / "results" / "latency_target-cpu.json"
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

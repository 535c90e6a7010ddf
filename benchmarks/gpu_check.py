"""How fast is a GPU's step beside its limit, and how long are a study of 64 trials and the
quickstart?

    python -m benchmarks.gpu_check --runs FOLDER [--device cuda] [--parts steps study quickstart]

A step trains K students of MiniLM-L6's size on 32 x 32 random tokens, against logits and hidden
states, each at a rate of its own: recorded, and with recording off. The limit is its matmuls alone,
at the rate of a large one. The study is `MaskSearch` on the quickstart's task, 1.5 epochs of search
and 6 of recovery, four hyperparameters tuned, 16 trials at once. Writes results/gpu_check.json.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from optuna.distributions import FloatDistribution
from rich.console import Console

from benchmarks import made_up
from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.steps import RECOVER, describe, matmul_rate, padded
from benchmarks.tuned import FIRST, MASKS
from maskfront import MaskSearch, Stage, Study, launch
from objectives.device import choose_device, free_memory, matmul_dtype
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.training.population import Population
from objectives.training.stage_training import StageTraining
from studies.quickstart import study as quickstart

SEARCHED, RECOVERED = 1.5, 6.0
_WARM_UP, _ROWS = 5, 4000
OFF: dict[str, Any] = {"target": "torch.backends.cuda.is_built", "return_value": False}
"""A patch under which nothing is recorded."""


def now(device: str) -> float:
    """Return the time, once the device has done its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def step_row(problem: Problem, k: int, steps: int, *, recorded: bool) -> Row:
    """Time the steps of K students."""
    device = problem.device
    free_memory()
    stage = replace(RECOVER, epochs=steps * 32 / len(problem.train))
    rates = [RECOVER.learning_rate * (1 - 0.5 * place / k) for place in range(k)]
    with nullcontext() if recorded else mock.patch(**OFF):
        training = StageTraining(
            problem,
            range(k),
            Population.of([problem.student] * k, matmul_dtype("auto", device)),
            stage,
            rates,
            None,
            batch_size=32,
            seed=0,
        )
    started, losses = 0.0, []
    for step, batch in enumerate(training.batches(0, SilentProgress())):
        if step == _WARM_UP:
            started = now(device)
        losses.append(training.step(batch, {}))
    milliseconds = 1000 * (now(device) - started) / (steps - _WARM_UP)
    # Forward and backward pass of the students; the forward pass of the teacher.
    flops = 32 * problem.budget.full * (3 * k + 1)
    return {
        "milliseconds": milliseconds,
        "limit": 1000 * flops / matmul_rate(device, lambda: now(device)),
        "last_loss": float(losses[-1].mean()),
    }


def searching_study(trials: int) -> Study:
    """Return the study of masks."""
    learns: dict[str, Any] = {"learning_rate": 3e-4, "loss": "prediction+hidden"}
    search = Stage(name="search", epochs=SEARCHED, searches=True, schedule="constant", **learns)
    steps = SEARCHED * 3000 / 32
    return replace(
        quickstart,
        name="masks",
        method=MaskSearch(stages=(search, Stage(name="recover", epochs=RECOVERED, **learns))),
        space={
            "target_ratio": FloatDistribution(0.08, 0.6, log=True),
            "grad_rescale": FloatDistribution(5 / steps, 50 / steps, log=True),
            **MASKS,
        },
        first=tuple({"target_ratio": ratio} for ratio in FIRST),
        objective="divergence",
        trials=trials,
        population=16,
    )


def study_row(study: Study, runs: Path, device: str) -> Row:
    """Time a study, its teacher included."""
    started = now(device)
    run = launch(
        study, out=runs / study.name, report=False, device=device, console=Console(quiet=True)
    )
    seconds = now(device) - started
    begun = min(trial.started for trial in run.finished if trial.started is not None)
    ended = max(trial.ended for trial in run.finished if trial.ended is not None)
    return {
        "seconds": seconds,
        "seconds_of_trials": ended - begun,
        "trials": len(run.finished),
    }


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = parser_of(__doc__, device=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the studies")
    parser.add_argument("--parts", nargs="+", default=["steps", "study", "quickstart"])
    parser.add_argument("--ks", nargs="+", type=int, default=[1, 16, 32])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trials", type=int, default=64)
    asked = parsed(parser)
    processor, rows = describe(choose_device(asked.device)), Rows(asked.out / "gpu_check.json")
    if "steps" in asked.parts:
        with TemporaryDirectory() as folder:
            checkpoint = made_up.make_checkpoint(Path(folder) / "model")
            problem = padded(
                made_up.make_problem(
                    *(checkpoint, 32, asked.device), train=_ROWS, cache=Path(folder) / "cache"
                )
            )
            for k in asked.ks:
                for recorded in (False, True):
                    about = {"part": "step", "processor": processor, "k": k, "recorded": recorded}
                    step = step_row(problem, k, asked.steps, recorded=recorded)
                    rows.add({**about, **step})
    for part, study in (("study", searching_study(asked.trials)), ("quickstart", quickstart)):
        if part in asked.parts:
            about = {"part": part, "processor": processor}
            rows.add({**about, **study_row(study, asked.runs, asked.device)})
    of_steps = [row for row in rows.rows if row["part"] == "step"]
    print_means(
        "a step",
        of_steps,
        ("processor", "k", "recorded"),
        {"milliseconds": ".1f", "limit": ".1f", "last_loss": ".4f"},
    )
    studies = [row for row in rows.rows if row["part"] != "step"]
    measured = {"trials": ".0f", "seconds": ".0f", "seconds_of_trials": ".0f"}
    print_means("studies", studies, ("processor", "part"), measured)


if __name__ == "__main__":
    main()

"""A step of distillation with the teacher's hidden states looked up, beside one that runs it.

The stage "prediction+hidden" of `FisherSearch` on the quickstart's model and tweets, students cut
to several ratios; one thread, its processor time, so that other work on the machine counts little.

    python -m benchmarks.teacher_states [--rounds 3] [--steps 8]

Prints a table and writes benchmarks/results/teacher_states-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.inner_search import make_problem
from benchmarks.timing import WARM_UP, Stopwatch, clock, describe, kind_of, until_enough
from objectives.device import quiet_libraries
from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.staged_method import StagedMethod
from objectives.training import teacher_states
from objectives.training.stages import Stage

RATIOS = (0.98, 0.5, 0.25, 0.1)


RECOVER = Stage(name="recover", epochs=1, learning_rate=3e-4, loss="prediction+hidden")
METHOD = FisherSearch(tolerance=0.02, stages=(RECOVER,), precision="float32")


def seconds_of_step(
    method: StagedMethod, problem: Problem, steps: int, seed: int, students: int = 1
) -> float:
    """Of the last stage, after its first steps; so many students take it at once."""
    kind = kind_of(problem.device)
    epochs = (steps + WARM_UP[kind]) * method.batch_size / len(problem.train)
    last = replace(method.stages[-1], epochs=epochs)
    members = [replace(method, stages=(*method.stages[:-1], last))] * students
    now = clock(problem.device, processor=kind == "cpu")
    watch = Stopwatch(last.name, steps, WARM_UP[kind], now)
    until_enough(type(method).search(members, problem, seed=seed, progress=watch))
    return watch.seconds


def main() -> None:
    """Both ways take turns; print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet_libraries()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        kept = make_problem(Path(folder), "cpu")
        started = time.process_time()
        teacher_states.keep_states(kept, torch.float32, SilentProgress())
        filled = time.process_time() - started
        [file] = Path(folder).glob("teacher-states-*.npy")
        size = file.stat().st_size
        run = replace(kept, cache=Path(folder) / "none")
        for ratio in RATIOS:
            method = replace(METHOD, target_ratio=ratio)
            seconds: dict[str, list[float]] = {"looked up": [], "run": []}
            for round_ in range(options.rounds):
                seconds["looked up"].append(seconds_of_step(method, kept, options.steps, round_))
                with patch.object(teacher_states, "_LIMIT", 0):
                    seconds["run"].append(seconds_of_step(method, run, options.steps, round_))
            gain = [b / a for a, b in zip(seconds["looked up"], seconds["run"], strict=True)]
            rows.append({"ratio": ratio, **seconds, "times_as_fast": gain})
    table = Table("FLOPs ratio", "ms a step, looked up", "teacher run", "times as fast")
    for row in rows:
        table.add_row(
            f"{row['ratio']:.2f}",
            *(f"{1000 * statistics.median(row[name]):.0f}" for name in ("looked up", "run")),
            f"{statistics.median(row['times_as_fast']):.2f}",
        )
    Console().print(table)
    print(f"{size / 2**20:.0f} MiB, written in {filled:.0f} s")  # noqa: T201
    document = {
        "device": describe("cpu"),
        "clock": "processor time of one thread",
        "torch": torch.__version__,
        "rows_of_train": len(kept.train),
        "bytes": size,
        "seconds_to_write": filled,
        "rows": rows,
    }
    out = Path(__file__).parent / "results" / "teacher_states-cpu.json"
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""One study of two methods, or two studies with half of its trials each? Which sampler?

MiniLM-L6 is fine-tuned on a task once. A trial cuts the BERT (`FisherSearch`) or makes a cell
(`CellSearch`), as in studies/cut_or_cells.py, with little training and more knobs:

    one study     the sampler draws the method, then the knobs of that method alone
    two studies   a study of each method with half of the trials, one front of both

Of two studies the sampler is the default: with 8 trials each, all draw at random. Of knobs that not
every trial has, "gp" and "nsgaii" learn nothing (Optuna's intersection search space): they choose
the method, and draw its knobs at random. "tpe" learns from each knob alone.

    OMP_NUM_THREADS=1 python -m benchmarks.two_methods --cache FOLDER --threads 1
        [--task sst2|cola --glue FOLDER] [--seeds 0 1 2] [--samplers tpe random nsgaii gp]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/two_methods.json row by row and goes on where it was stopped; prints the means of
the rows there. The hypervolume is that of a run's page, as a share of the ideal: there all cheap
models are nearly equal. So beside it stands the area above the unpruned metric less 0.1, the ratio
by its logarithm to base 10; on the selection split, by which a front is chosen, and held out.
Seconds are those of the processor. What all studies share, such as the teacher, is made before;
what a launch makes for itself counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from rich.console import Console

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means, sharing_cache
from benchmarks.tasks import task_of, teacher_for, workbench
from maskfront import CellSearch, FisherSearch, Run, SearchMethod, Study, Task, Teacher, launch
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import Checkpoint
from orchestrator.runs.records import pareto_front
from orchestrator.sampler import SamplerName
from reports.figures.outer_loop import area, share_covered
from studies.cut_or_cells import recover

SAMPLERS: tuple[SamplerName, ...] = ("tpe", "random", "nsgaii", "gp")
SINGLE, BOTH = "two studies", "one study"
WORST = 0.1
"""How far below the unpruned metric a model is worth nothing."""
OPERATIONS = ("conv5", "attention", "gated", "none")
METHODS: Mapping[str, SearchMethod] = {
    "cut": FisherSearch(tolerance=0.01, stages=(replace(recover, epochs=0.25),)),
    "cells": CellSearch(operations=("conv5", "none"), epochs=3),
}
SPACE: Mapping[str, BaseDistribution] = {
    "cut.target_ratio": FloatDistribution(0.05, 0.25, log=True),
    "cut.cost_power": FloatDistribution(0.7, 1.0),
    "cut.stages.recover.learning_rate": FloatDistribution(1e-4, 2e-3, log=True),
    "cells.width": CategoricalDistribution((32, 64, 128, 256)),
    "cells.learning_rate": FloatDistribution(5e-4, 1e-2, log=True),
    "cells.operations[0]": CategoricalDistribution(OPERATIONS[:-1]),
    "cells.operations[1]": CategoricalDistribution(OPERATIONS),
}


class Bench:
    """A task, its fine-tuned teacher as a folder, and what all studies of it share."""

    def __init__(self, name: str, glue: str | None, cache: Path, scratch: Path):
        self.task: Task = task_of(name, glue)
        self.shared, self.scratch = scratch / "cache", scratch
        self.shared.mkdir()
        own = scratch / "teacher"
        save_model(workbench(name, glue, cache).problem.teacher, own)
        Checkpoint(teacher_for(name).checkpoint).tokenizer.save_pretrained(own)
        self.teacher = Teacher(checkpoint=str(own))
        self.run("", trials=len(METHODS), seed=0)  # fills the cache before the clock runs

    def run(self, only: str, *, trials: int, seed: int, sampler: SamplerName = "tpe") -> Run:
        """A study of one method, or of all if none is named, run in a folder of its own."""
        study = Study(
            name="two-methods",
            task=self.task,
            teacher=self.teacher,
            method=METHODS[only] if only else METHODS,
            space={
                place.removeprefix(f"{only}."): knob
                for place, knob in SPACE.items()
                if place.startswith(f"{only}.") or not only
            },
            sampler=sampler,
            trials=trials,
            population=1,
            seed=seed,
        )
        with (
            TemporaryDirectory(dir=self.scratch) as folder,
            sharing_cache(self.shared, Path(folder)),
        ):
            return launch(study, out=folder, report=False, console=Console(quiet=True))


def of_runs(runs: Sequence[Run], seconds: float) -> Row:
    """What a row tells of the front of one study, or of several together."""
    front = pareto_front([trial for run in runs for trial in run.trials])
    whole = runs[0].unpruned
    finished = [trial for run in runs for trial in run.finished]
    cells = sum("heads" not in trial.result.widths for trial in finished)
    areas = {}
    for name, field in (("area", "metric"), ("heldout_area", "heldout_metric")):
        steps = [(math.log10(one.result.ratio), getattr(one.result, field)) for one in front]
        areas[name] = area(steps, getattr(whole, field) - WORST, 0.0)
    shares = [(one.result.ratio, one.result.metric) for one in front]
    return {
        "hypervolume": share_covered(shares, whole.metric),
        **areas,
        "finished": len(finished),
        "cells": cells,
        "front": len(front),
        "seconds": round(seconds),
    }


def measured(bench: Bench, arm: str, sampler: SamplerName, trials: int, seed: int) -> Row:
    """Run the study, or the studies, of an arm."""
    started = time.process_time()
    each = {"": trials} if arm == BOTH else dict.fromkeys(METHODS, trials // len(METHODS))
    runs = [
        bench.run(only, trials=number, seed=seed, sampler=sampler) for only, number in each.items()
    ]
    return of_runs(runs, time.process_time() - started)


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--trials", type=int, default=16)
    asked = parsed(parser)
    rows = Rows(asked.out / "two_methods.json")
    arms = [(SINGLE, "tpe"), *((BOTH, sampler) for sampler in asked.samplers)]
    wanted = [
        {"task": asked.task, "trials": asked.trials, "arm": arm, "sampler": sampler, "seed": seed}
        for seed in asked.seeds
        for arm, sampler in arms
    ]
    if left := [key for key in wanted if not rows.has(key)]:
        with TemporaryDirectory() as scratch:
            bench = Bench(asked.task, asked.glue, asked.cache, Path(scratch))
            for key in left:
                own = measured(bench, key["arm"], key["sampler"], key["trials"], key["seed"])
                rows.add({**key, **own})
    print_means(
        "fronts after so many trials",
        rows.rows,
        ("task", "trials", "arm", "sampler"),
        {
            "hypervolume": ".4f",
            "area": ".4f",
            "heldout_area": ".4f",
            "cells": ".1f",
            "seconds": ".0f",
        },
    )


if __name__ == "__main__":
    main()

"""A study of cut BERTs and cells together, beside a study of each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from rich.console import Console

from benchmarks.harness import Benchmark, Row, sharing_cache
from benchmarks.tasks import task_of, teacher_for, workbench
from maskfront import CellSearch, FisherSearch, Run, SearchMethod, Study, Task, Teacher, launch
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import Checkpoint
from orchestrator.runs.records import pareto_front
from orchestrator.sampler import SamplerName
from reports.figures.outer_loop import area, share_covered
from studies.cut_or_cells import recover

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
    """A task, its teacher as a folder, and the cache of all its studies."""

    def __init__(self, name: str, glue: str | None, cache: Path, scratch: Path):
        """Fine-tune the teacher, and fill the cache before the clock runs."""
        self.task: Task = task_of(name, glue)
        self.shared, self.scratch = scratch / "cache", scratch
        self.shared.mkdir()
        folder = scratch / "teacher"
        save_model(workbench(name, glue, cache).problem.teacher, folder)
        Checkpoint(teacher_for(name).checkpoint).tokenizer.save_pretrained(folder)
        self.teacher = Teacher(checkpoint=str(folder))
        self.run("", trials=len(METHODS), seed=0)

    def run(self, only: str, *, trials: int, seed: int, sampler: SamplerName = "tpe") -> Run:
        """Run a study of one method, or of all if none is named, in a new folder."""
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
    """Score the front of one study, or of several together."""
    front = pareto_front([trial for run in runs for trial in run.trials])
    unpruned = runs[0].unpruned
    finished = [trial for run in runs for trial in run.finished]
    cells = sum("heads" not in trial.result.widths for trial in finished)
    # In the hypervolume all cheap models are nearly equal. The areas are above the unpruned metric
    # less 0.1, with the ratio by its logarithm to base 10.
    areas = {}
    for name, field in (("area", "metric"), ("heldout_area", "heldout_metric")):
        steps = [(math.log10(trial.result.ratio), getattr(trial.result, field)) for trial in front]
        areas[name] = area(steps, getattr(unpruned, field) - WORST, 0.0)
    shares = [(trial.result.ratio, trial.result.metric) for trial in front]
    return {
        "hypervolume": share_covered(shares, unpruned.metric),
        **areas,
        "finished": len(finished),
        "cells": cells,
        "front": len(front),
        "seconds": round(seconds),
    }


class TwoMethods(Benchmark[Bench]):
    """One study of two methods, or two studies with half of its trials each? Which sampler?

    Of two studies the sampler is the default: with 8 trials each, all draw at random. Of knobs that
    not every trial has, "gp" and "nsgaii" learn nothing (Optuna's intersection search space).
    """

    name = "two_methods"
    grid = {"sampler": ("two studies", "tpe", "random", "nsgaii", "gp"), "trials": (16,)}
    groups = ("task", "trials", "arm", "sampler")
    means = {
        **{"hypervolume": ".4f", "area": ".4f", "heldout_area": ".4f"},
        **{"cells": ".1f", "seconds": ".0f"},
    }

    def prepare(self, key: Row) -> Bench:
        """Make what all studies share."""
        return Bench(self.asked.task, self.asked.glue, self.asked.cache, self.scratch)

    def key(self, key: Row, bench: Bench) -> Row:
        """Return the key: "two studies" is an arm of the default sampler."""
        if key["sampler"] == "two studies":
            return {**key, "arm": "two studies", "sampler": "tpe"}
        return {**key, "arm": "one study"}

    def rows(self, key: Row, bench: Bench) -> list[Row]:
        """Run the study, or the studies."""
        started, trials = time.process_time(), key["trials"]
        each = {"": trials}
        if key["arm"] == "two studies":
            each = dict.fromkeys(METHODS, trials // len(METHODS))
        runs = [
            bench.run(method, trials=number, seed=key["seed"], sampler=key["sampler"])
            for method, number in each.items()
        ]
        return [of_runs(runs, time.process_time() - started)]

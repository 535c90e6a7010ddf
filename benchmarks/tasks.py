"""Tasks of the benchmarks, their teachers, and the measures of a trial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness import Benchmark, Row
from maskfront import SearchMethod, SearchResult, Task, Teacher, glue
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.session import Session
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from studies._data import minilm, tweets

RATE = 3e-4
"""Learning rate of a student that is trained alone."""
BATCH = 32
EPOCHS_OF_TEACHER = {"tweets": 2, "sst2": 3, "cola": 3, "rte": 5}
SIZES: dict[str, dict[str, int]] = {
    "sst2": {"train": 10_000, "alpha": 1000, "select": 1500, "max_length": 64},
    "cola": {"alpha": 500, "select": 1000, "max_length": 64},
    "rte": {"alpha": 200, "select": 300, "max_length": 128},
}


def task_of(name: str, folder: str | None) -> Task:
    """Return a task: tweets, or one of GLUE from `folder`, 10,000 rows of SST-2."""
    if folder is None:
        return Task(
            name=name, data=tweets, label="sentiment", max_length=48, train=4000, select=1500
        )
    return glue(name, folder, **SIZES[name])


def teacher_for(name: str) -> Teacher:
    """Return MiniLM-L6, which is fine-tuned on the task."""
    epochs = EPOCHS_OF_TEACHER[name]
    return Teacher(checkpoint=minilm(), epochs=epochs, learning_rate=5e-5)


def workbench(
    name: str, folder: str | None, cache: Path, *, all_text: bool = False, device: str = "cpu"
) -> Workbench:
    """Prepare a task; with `all_text` students learn from the rows beyond train, too."""
    task = task_of(name, folder)
    if all_text:
        task = replace(task, unlabelled_split=task.split)
    return prepare(read_inputs(task, teacher_for(name)), Session(cache=cache, device=device))


def teacher_row(bench: Workbench) -> dict[str, Any]:
    """Return the teacher's metrics on both splits."""
    teacher = bench.unpruned
    return {"teacher_select": teacher.metric, "teacher_heldout": teacher.heldout_metric}


def epochs_of(steps: float, bench: Workbench) -> float:
    """Convert steps of a batch into passes over train."""
    return steps * BATCH / len(bench.problem.train)


def search(method: SearchMethod, problem: Problem, seed: int) -> SearchResult:
    """Run one trial."""
    [outcome] = type(method).search([method], problem, seed=seed, progress=SilentProgress())
    assert isinstance(outcome, SearchResult), outcome
    return outcome


def measure(
    bench: Workbench, method: SearchMethod, seed: int, problem: Problem | None = None
) -> dict[str, Any]:
    """Run one trial; return its worth and the seconds of the processor that it took."""
    started = time.process_time()
    outcome = search(method, problem or bench.problem, seed)
    return {"processor_seconds": time.process_time() - started, **worth(bench, outcome)}


def worth(bench: Workbench, result: SearchResult) -> dict[str, Any]:
    """Return metrics, costs, agreement with the teacher, and KL from its answers in nats."""
    answers = bench.answers(result.model, result.architecture)
    score = bench.score(result.model, result.architecture, answers)
    agreement = {
        role: (answers[role].argmax(-1) == logits.argmax(-1)).float().mean().item()
        for role, logits in bench.teacher_answers.items()
    }
    return {
        "kl": score.divergence,
        "heldout_kl": score.heldout_divergence,
        "select": score.metric,
        "heldout": score.heldout_metric,
        "agreement": agreement["select"],
        "heldout_agreement": agreement["heldout"],
        "bytes": score.bytes,
        "reached": score.cost / bench.problem.budget.full,
    }


def kept(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return these fields alone."""
    return {name: row[name] for name in names}


class Training(Benchmark[Workbench]):
    """A question about what a method makes of a fine-tuned MiniLM-L6: a trial for each row."""

    kept: ClassVar[Sequence[str]] = ("kl", "heldout_kl", "select", "heldout", "processor_seconds")

    def prepare(self, key: Row) -> Workbench:
        """Fine-tune the teacher; with `--text` rows beyond train are there, too."""
        asked = self.asked
        text = getattr(asked, "text", False)
        return workbench(asked.task, asked.glue, asked.cache, all_text=text, device=asked.device)

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return the method of a row."""
        raise NotImplementedError

    def problem(self, key: Row, bench: Workbench) -> Problem:
        """Return the rows that the method may read."""
        return bench.problem

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Run the trial."""
        method, problem = self.method(key, bench), self.problem(key, bench)
        row = measure(bench, method, key["seed"], problem)
        return [{**teacher_row(bench), **kept(row, *self.kept)}]


TEXT = {"text": "learn from the rows beyond train, too, without their labels"}

"""The tasks of the benchmarks, their teachers, and what is measured of a trial."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from maskfront import SearchMethod, SearchResult, Task, Teacher, glue
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.session import Session
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from studies._quickstart_data import minilm, tweets

RATE = 3e-4
"""The learning rate of a student that is trained alone."""
EPOCHS_OF_TEACHER = {"tweets": 2, "sst2": 3, "cola": 3, "rte": 5}
SIZES: dict[str, dict[str, int]] = {
    "sst2": {"train": 10_000, "alpha": 1000, "select": 1500, "max_length": 64},
    "cola": {"alpha": 500, "select": 1000, "max_length": 64},
    "rte": {"alpha": 200, "select": 300, "max_length": 128},
}


def task_of(name: str, folder: str | None) -> Task:
    """The rows of a task, those of GLUE from `folder`: 10,000 of SST-2, all of the others."""
    if folder is None:
        return Task(
            name=name, data=tweets, label="sentiment", max_length=48, train=4000, select=1500
        )
    return glue(name, folder, **SIZES[name])


def teacher_for(name: str) -> Teacher:
    """MiniLM-L6, which is fine-tuned on the task."""
    epochs = EPOCHS_OF_TEACHER[name]
    return Teacher(checkpoint=minilm(), epochs=epochs, learning_rate=5e-5)


def workbench(
    name: str, folder: str | None, cache: Path, *, all_text: bool = False, device: str = "cpu"
) -> Workbench:
    """Rows, teacher and scores of a task; with `all_text` students learn from the rows beyond train
    too, without their labels."""
    own = task_of(name, folder)
    if all_text:
        own = replace(own, unlabelled_split=own.split)
    return prepare(read_inputs(own, teacher_for(name)), Session(cache=cache, device=device))


def teacher_row(bench: Workbench) -> dict[str, Any]:
    """What a row tells of the teacher."""
    whole = bench.unpruned
    return {"teacher_select": whole.metric, "teacher_heldout": whole.heldout_metric}


def search(method: SearchMethod, problem: Problem, seed: int) -> SearchResult:
    """The student of one trial."""
    [outcome] = type(method).search([method], problem, seed=seed, progress=SilentProgress())
    assert isinstance(outcome, SearchResult), outcome
    return outcome


def measure(
    bench: Workbench, method: SearchMethod, seed: int, problem: Problem | None = None
) -> dict[str, Any]:
    """What one trial keeps of the teacher, and what its search took.

    KL is the divergence from the teacher's answers, in nats; seconds are those of the processor.
    """
    started = time.process_time()
    outcome = search(method, problem or bench.problem, seed)
    return {"processor_seconds": time.process_time() - started, **worth(bench, outcome)}


def worth(bench: Workbench, found: SearchResult) -> dict[str, Any]:
    """What a student keeps of the teacher, and what it costs."""
    answers = bench.answers(found.model, found.architecture)
    score = bench.score(found.model, found.architecture, answers)
    same = {
        role: (answers[role].argmax(-1) == said.argmax(-1)).float().mean().item()
        for role, said in bench.teacher_answers.items()
    }
    return {
        "kl": score.divergence,
        "heldout_kl": score.heldout_divergence,
        "select": score.metric,
        "heldout": score.heldout_metric,
        "agreement": same["select"],
        "heldout_agreement": same["heldout"],
        "bytes": score.bytes,
        "reached": score.cost / bench.problem.budget.full,
    }


def kept(found: dict[str, Any], *names: str) -> dict[str, Any]:
    """These numbers of a trial alone."""
    return {name: found[name] for name in names}

"""Methods that take no time: one ends as it is told, one takes its time, one leaves marks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from objectives.measures.cost import CostName
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchFailure, SearchMethod, SearchResult
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from orchestrator.study import Study
from tests.waiting import wait_for

STEPS = 200  # of a search of `Paced`


def untrained(
    problem: Problem,
    slot: int,
    units: BertArchitecture | None = None,
    *,
    target: float | None = 1.0,
    tolerance: float = 0.1,
    **said: Any,
) -> SearchResult:
    """A student of these units, by default of all, as it is cut; `said` is said of it instead."""
    units = BertArchitecture.full(problem.shape) if units is None else units
    model = cut(problem.student.state_dict(), problem.student.config, units)
    curve = [{"stage": "pretend", "step": 0, "loss": 1.0}]
    told = {"architecture": units, "curve": curve, **said}
    return SearchResult(slot=slot, model=model, target_ratio=target, tolerance=tolerance, **told)


@dataclass(frozen=True, kw_only=True)
class Scripted(SearchMethod):
    """Keeps every unit; ends as `end` says. No training: launch is what is tested."""

    costs: ClassVar[frozenset[CostName]] = frozenset(get_args(CostName))
    per_slot: ClassVar[frozenset[str]] = frozenset({"end", "tag", "target_ratio"})

    end: str = "result"
    tag: int = 0
    target_ratio: float = 1.0
    tolerance: float = 0.1

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        progress.begin("pretend", 1)
        progress.advance()
        for slot, member in enumerate(members):
            if member.end == "fail":
                yield SearchFailure(slot, "the loss is nan at step 3")
            elif member.end == "raise":
                raise ZeroDivisionError("a bug in the method")
            elif member.end == "too large" or (member.end == "memory" and len(members) > 2):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            elif member.end == "ctrl-c":
                raise KeyboardInterrupt
            elif member.end == "disk":
                raise OSError(28, "No space left on device", "trials/00001")
            elif member.end != "silent":
                one_unit = BertArchitecture((LayerUnits((0,), (0,)),) * problem.shape.layers)
                said = {"architecture": one_unit} if member.end == "uncut" else {}
                target, tolerance = member.target_ratio, member.tolerance
                student = untrained(problem, slot, target=target, tolerance=tolerance, **said)
                if member.end == "nan":
                    torch.nn.init.constant_(student.model.classifier.bias, torch.nan)
                yield student


def scripted(study: Study, *ends: str, population: int = 2, **changes: object) -> Study:
    """The tiny study with trials that end in the given ways, one after another."""
    return replace(
        study,
        method=Scripted(),
        space={
            "end": CategoricalDistribution(tuple(dict.fromkeys(ends))),
            "tag": IntDistribution(0, 100),
        },
        first=tuple({"end": end, "tag": tag} for tag, end in enumerate(ends)),
        trials=len(ends),
        population=population,
        **changes,
    )


@dataclass(frozen=True, kw_only=True)
class Paced(SearchMethod):
    """Keeps as many heads of each layer as it is told, and takes its time."""

    costs: ClassVar[frozenset[CostName]] = frozenset(get_args(CostName))
    per_slot: ClassVar[frozenset[str]] = frozenset({"heads", "seconds", "tag"})

    heads: int = 4
    seconds: float = 0.0
    tag: int = 0

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        for slot, member in enumerate(members):
            progress.begin("pretend", STEPS)
            for _ in range(STEPS):
                time.sleep(member.seconds / STEPS)
                progress.advance()
            units = LayerUnits(tuple(range(member.heads)), tuple(range(problem.shape.ffn)))
            architecture = BertArchitecture((units,) * problem.shape.layers)
            yield untrained(problem, slot, architecture, target=None)


def paced(study: Study, *trials: tuple[int, float], **changes: Any) -> Study:
    """The tiny study with trials that keep so many heads and take so many seconds."""
    return replace(
        study,
        method=Paced(),
        space={
            "heads": IntDistribution(1, 4),
            "seconds": FloatDistribution(0, 1000),
            "tag": CategoricalDistribution(tuple(range(20))),
        },
        first=tuple(
            {"heads": heads, "seconds": seconds, "tag": tag}
            for tag, (heads, seconds) in enumerate(trials)
        ),
        **{"trials": len(trials), "population": 1, **changes},
    )


@dataclass(frozen=True, kw_only=True)
class Marked(SearchMethod):
    """Leaves a mark of its process and its environment.

    If it `meets`, it waits for a second worker to do so; if it `kills`, the one of the lower pid
    then kills itself.
    """

    per_slot: ClassVar[frozenset[str]] = frozenset({"target_ratio"})

    marks: str
    kills: bool = False
    meets: bool = True
    target_ratio: float = 1.0

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        folder, pid = Path(members[0].marks), os.getpid()
        (folder / f"{pid}").write_text(os.environ.get("OMP_NUM_THREADS", ""))
        if members[0].meets:
            wait_for("both workers at work", lambda: len(list(folder.iterdir())) >= 2)
        if members[0].kills and pid == min(int(path.name) for path in folder.iterdir()):
            os.kill(pid, signal.SIGKILL)
        for slot, _ in enumerate(members):
            yield untrained(problem, slot)


def marked(study: Study, marks: Path) -> Study:
    """The study with this method: six trials, one at a time."""
    marks.mkdir()
    return replace(
        study,
        method=Marked(marks=str(marks)),
        space={"target_ratio": FloatDistribution(0.5, 1)},
        first=(),
        trials=6,
        population=1,
    )

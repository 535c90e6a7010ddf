"""A method of no time that shows which processes ran it, and may kill one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from optuna.distributions import FloatDistribution

from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchMethod, SearchResult
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from orchestrator.study import Study
from tests.waiting import wait_for


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
        full = BertArchitecture.full(problem.shape)
        for slot, _ in enumerate(members):
            yield SearchResult(
                slot=slot,
                architecture=full,
                model=cut(problem.student.state_dict(), problem.student.config, full),
                target_ratio=1.0,
                tolerance=0.1,
                curve=[{"stage": "marked", "step": 0}],
            )


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

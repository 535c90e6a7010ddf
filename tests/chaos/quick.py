"""A search method of milliseconds: its knobs say which units stay, and it waits a little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchMethod, SearchResult
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut

BUSY = "CHAOS_BUSY"
"""Environment variable: a folder in which a worker that has begun to search leaves its pid."""


@dataclass(frozen=True, kw_only=True)
class Quick(SearchMethod):
    """Keeps a share of the neurons of each layer, and all heads."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"share", "noise"})

    share: float = 0.5
    noise: float = 0.0
    """Without effect: it tells one trial from another."""
    pause: float = 0.05
    """Seconds that a student takes."""
    scoring: float = 0.0
    """Seconds of its first score."""

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        Path(os.environ[BUSY], str(os.getpid())).touch()
        shape = problem.shape
        for slot, member in enumerate(members):
            time.sleep(member.pause)
            kept = tuple(range(max(1, round(member.share * shape.ffn))))
            layer = LayerUnits(heads=tuple(range(shape.heads)), ffn=kept)
            architecture = BertArchitecture((layer,) * shape.layers)
            model = cut(problem.student.state_dict(), problem.student.config, architecture)
            if member.scoring:
                model.register_forward_pre_hook(partial(_wait_to_be_scored, member.scoring))
            yield SearchResult(
                slot=slot,
                architecture=architecture,
                model=model,
                target_ratio=problem.budget.ratio(architecture),
                tolerance=0.1,
                curve=[{"stage": "quick", "step": 0, "loss": 1 - member.share}],
            )


def _wait_to_be_scored(seconds: float, *_: object) -> None:
    Path(os.environ[BUSY], f"scoring-{os.getpid()}").touch()
    time.sleep(seconds)

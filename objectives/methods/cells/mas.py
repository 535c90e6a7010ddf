"""MAS (Pasunuru & Bansal 2019): ENAS for several tasks, whose cell serves all of them."""

# The super-net's weights are shared but for a head a task; a cell's reward is the mean of its
# scores over the tasks. The cell is then trained again for each task, with weights of its own. The
# study's metric stays that of its own task, so that models are compared on the same rows; those of
# the tasks beside it are recorded with each trial.

from dataclasses import dataclass, replace
from typing import ClassVar

from objectives.methods.cells.base.choosing import ChosenCell
from objectives.methods.cells.enas import Enas
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchResult


@dataclass(frozen=True, kw_only=True)
class Mas(Enas):
    """Search by a controller for one cell that serves the study's task and those beside it."""

    learns_beside: ClassVar[bool] = True

    def _learnt(
        self, slot: int, chosen: ChosenCell, problem: Problem, seed: int, progress: Progress
    ) -> Outcome:
        results: list[SearchResult] = []
        for task in (problem, *problem.beside):
            outcome = super()._learnt(slot, chosen, task, seed, progress)
            if not isinstance(outcome, SearchResult):
                return outcome
            results.append(outcome)
        return replace(results[0], beside=tuple(results[1:]))

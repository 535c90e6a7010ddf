"""Methods that choose units once, cut, and distil: the baselines of a search.

Such a method gives each unit a score. All else is as for the searches, `budget.discretise` and
`staged_search`, so that a comparison is one of the choice of units."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch import Tensor

from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.importance import evenly, scores_per_cost
from objectives.pruning.staged_method import StagedMethod
from objectives.pruning.staged_search import Chosen, staged_search
from objectives.search_method import Outcome
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier


@dataclass(frozen=True, kw_only=True)
class OneShot(StagedMethod):
    """Base of the methods that rank units once. Without `stages` a student stays as it was cut."""

    with_search: ClassVar[bool] = False

    def inactive(self) -> Mapping[str, str]:
        full = "a ranking that is done once always fills the budget R"
        inactive = {**super().inactive(), "tolerance": full}
        if not self.stages:
            reason = "it only acts in stages, and there are none"
            inactive |= dict.fromkeys(("batch_size", "precision"), reason)
        return inactive

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Scores of units: by default what moves the answer most (Fisher information) per cost.

        Args:
            problem: what the method works on.
            seed: of the study.

        Returns:
            Of each searched space (layers, *units_of(shape, space)); higher is better.
        """
        return scores_per_cost(problem, self.spaces, "logits")

    def choose(self, problem: Problem, seed: int) -> BertArchitecture:
        """Choose the units of highest score inside the budget.

        Args:
            problem: what the method works on.
            seed: of the study.

        Returns:
            The units that stay.
        """
        return self.within_budget(self.scores(problem, seed), problem)

    def student(self, problem: Problem, architecture: BertArchitecture, seed: int) -> Classifier:
        """Model that is cut to the architecture, or that is already cut.

        Args:
            problem: what the method works on.
            architecture: the units that stay.
            seed: of the study.

        Returns:
            By default the student of the problem.
        """
        return problem.student

    def _found(self, problem: Problem, seed: int) -> tuple[BertArchitecture, Classifier]:
        chosen = self.choose(problem, seed)
        return chosen, self.student(problem, chosen, seed)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        progress.begin("choose units", len(members))
        chosen, students = [], []
        for member in members:
            units, student = member._found(problem, seed)
            chosen.append(units)
            students.append(student)
            progress.advance()
        yield from staged_search(
            members, problem, Chosen(chosen), seed=seed, progress=progress, students=students
        )


@dataclass(frozen=True, kw_only=True)
class ScopedOneShot(OneShot):
    """Base of those whose units compete in the model or in their layer."""

    scope: Literal["global", "layer"] = "global"
    """Who competes: all units of the model, or those of each layer for equal shares."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Take `scores_of_units`; within a layer their order alone counts."""
        scores = self.scores_of_units(problem, seed)
        return evenly(scores) if self.scope == "layer" else scores

    @abc.abstractmethod
    def scores_of_units(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Scores of units that compete in the whole model.

        Args:
            problem: what the method works on.
            seed: of the study.

        Returns:
            Of each searched space (layers, *units_of(shape, space)); higher is better.
        """

"""Contract of a search method: everything that the outer loop knows of one.

A method is a frozen dataclass whose fields are all its settings. A study names some of them in its
space; a trial is the method with those fields replaced. Copies that differ only in the fields named
by `per_slot` train together as one population; a population of one is the plain case.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import Checked, UserError
from objectives.knobs import matches, settings
from objectives.measures.cost import CostName
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.students.family import Architecture

CurvePoint = Mapping[str, float | str]
"""A row of a learning curve: stage, step, and what the method measures there."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Student that was searched, cut and trained, ready to be scored."""

    slot: int
    """Index of the student in its population."""
    architecture: Architecture
    """Architecture that the search chose."""
    model: PreTrainedModel
    """A classifier of texts, of any kind. For a regression it gives the numbers of
    `Problem.scale`, in its last linear layer."""
    curve: Sequence[CurvePoint]
    """Rows of a learning curve: stage, step, and what the method measures there."""
    target_ratio: float | None = None
    """R: the share of `Problem.budget` to keep; None if the method has no target."""
    tolerance: float = 0.0
    """t: the cut model lies in [(1 - t) R, (1 + t) R], or missed its budget."""
    forgotten: float | None = None
    """Drop in the study's objective on this task after training on later tasks; None if trained
    last."""
    beside: tuple[SearchResult, ...] = ()
    """Students of the tasks of `Problem.beside`, in their order."""


@dataclass(frozen=True)
class SearchFailure:
    """Student without a result, for example because its loss was not finite."""

    slot: int
    """Index of the student in its population."""
    reason: str
    """Reason in one line, for people."""


Outcome = SearchResult | SearchFailure


def not_finite(slot: int, curve: Sequence[CurvePoint]) -> SearchFailure | None:
    """Failure of a student if one of its losses is not finite."""
    for point in curve:
        if not math.isfinite(float(point["loss"])):
            where = f"at step {point['step']} of stage {point['stage']}"
            return SearchFailure(slot, f"the loss is {point['loss']} {where}")
    return None


@dataclass(frozen=True, kw_only=True)
class SearchMethod(Checked, abc.ABC):
    """Base of every search method. A subclass is final: a frozen, keyword-only dataclass.

    Life of a population: the outer loop makes K copies with `knobs.with_knobs`, splits them into
    groups of one shape with `populations`, and calls `search` on each group. The method trains
    the group as one program and yields one outcome for each member, as soon as it has it, in any
    order. It learns from `problem.train` and `problem.alpha` alone; `problem.select_score` may say
    which of its checkpoints is best.
    """

    costs: ClassVar[frozenset[CostName]] = frozenset({"flops", "params", "bytes", "latency"})
    """Costs that a study of the method may count; by default those that apply to any model."""
    per_slot: ClassVar[frozenset[str]] = frozenset()
    """Settings that may differ within a population: paths as in `knobs`, where "*" matches
    anything, such as "stages.*.learning_rate"."""
    learns_beside: ClassVar[bool] = False
    """Whether it learns the tasks of `Study.beside`, too; a study must then name some."""

    def __post_init__(self) -> None:
        """Raises UserError for a list, as fields are compared and hashed, and for what is no number
        or no tuple and should be. A subclass that checks more calls this first."""
        super().__post_init__()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                raise UserError(
                    f"{type(self).__name__}.{field.name} is a list; give a tuple: {tuple(value)!r}"
                )

    def inactive(self) -> Mapping[str, str]:
        """Fields that have no effect with the other settings, so that no study may tune them.

        Returns:
            The names of the fields, each with what it acts with, in a few words.
        """
        return {}

    def canonical(self) -> Self:
        """Canonical form of the method: methods of equal form give equal results.

        Returns:
            By default the method as it is, for which no settings are two spellings of one student.
        """
        return self

    def scale_epochs(self, share: float) -> Self:
        """Copy of the method with less training.

        Args:
            share: of the training of a student, in (0, 1].

        Returns:
            A copy with that share of the training.

        Raises:
            UserError: for less than all of a method that trains nothing.
        """
        if share < 1:
            raise UserError(
                f"{type(self).__name__} trains nothing, so Fidelity.epochs cannot be {share}; "
                "leave it at 1"
            )
        return self

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """Refuse a setting that does not fit the sizes of student and teacher.

        A launch asks before anything is trained. Labels do not count: a checkpoint may have none.

        Args:
            student: the configuration of the unpruned student.
            teacher: that of the teacher.

        Raises:
            UserError: for such a setting.
        """
        del student, teacher

    @classmethod
    @abc.abstractmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search once for every member; slot i is `members[i]`.

        The same fields, seed and problem give the same outcome, whatever its neighbours.

        Args:
            members: copies of one method that differ in fields of `per_slot` alone.
            problem: what the method works on.
            seed: of the study.
            progress: what the method tells of its run.

        Yields:
            One outcome for each member, as soon as there is one, in any order. Its model is read
            while the search goes on: it stays as it is.
        """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        named = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
        unknown = {index for index in cls.per_slot if index.partition(".")[0] not in named}
        if unknown:
            raise TypeError(f"{cls.__name__}.per_slot names no field: {sorted(unknown)}")


def populations(members: Sequence[SearchMethod]) -> list[list[int]]:
    """Groups of indices of `members` that can train together: they differ in `per_slot` alone."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, member in enumerate(members):
        shared = (s for s in settings(member).items() if not matches(s[0], member.per_slot))
        key = (type(member), *shared)
        groups.setdefault(key, []).append(index)
    return list(groups.values())

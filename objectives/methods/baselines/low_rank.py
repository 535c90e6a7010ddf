"""Low rank: linear layers become two thinner ones, then the student is distilled.

The ranks are those of least added error per FLOP (or parameter, where the study counts these), by a
singular value decomposition whitened by what enters each layer (`strategies/low_rank.py`). A layer
whose factors would save nothing stays whole. No unit leaves: heads and neurons stay as many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from objectives.device import to_device
from objectives.measures.cost import CostName
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome
from objectives.staged_method import Staged, Targeted
from objectives.strategies.low_rank import factored, ranks_within, spectra
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture
from objectives.weights.alpha import Chosen
from objectives.weights.independent import staged_search


@dataclass(frozen=True, kw_only=True)
class LowRank(Targeted, Staged):
    """Weights as products of two thinner ones, of the ranks that the budget allows.

    The embeddings may have few bits and word pieces may leave, but weights of low rank are not
    quantised here: export with int8, which quantises the factors.
    """

    costs: ClassVar[frozenset[CostName]] = frozenset({"flops", "params", "bytes", "bitops"})
    per_slot: ClassVar[frozenset[str]] = Targeted.per_slot | Staged.per_slot
    with_search: ClassVar[bool] = False

    def idle(self) -> Mapping[str, str]:
        """The budget is filled up to a rank."""
        idle = {"tolerance": "ranks always fill the budget R"}
        idle["input_bits"] = "weights of low rank are not quantised"
        if not self.stages:
            idle |= dict.fromkeys(("batch_size", "precision"), "there are no stages")
        return {**super().idle(), **idle}

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """The same weights, with the bits of the embeddings."""
        return self._with_weight_bits(architecture, FULL_BITS)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Choose the ranks of each member, then distil."""
        found, budget = spectra(problem), problem.budget
        chosen = [
            ranks_within(found, budget.cost, member.target_ratio * budget.full)
            for member in members
        ]
        students = [
            to_device(factored(problem.student, units, found), problem.device) for units in chosen
        ]
        yield from staged_search(
            members, problem, Chosen(chosen), seed=seed, progress=progress, students=students
        )

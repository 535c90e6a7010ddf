"""What the methods share whose result is a BERT that was cut: the bits and word pieces of it."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import PositiveShare, UserError, check_ranges
from objectives.measures.cost import CostName
from objectives.problem import Problem
from objectives.search_method import CurvePoint, SearchMethod, SearchResult
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.packing import INPUT_BITS, WEIGHT_BITS
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import keep_pieces, quantised

Bits = int | tuple[int, ...]
"""Of all layers, or an entry a layer."""


@dataclass(frozen=True, kw_only=True)
class BertMethod(SearchMethod):
    """Base of the methods whose result is a BERT that was cut."""

    costs: ClassVar[frozenset[CostName]] = frozenset(get_args(CostName))
    per_slot: ClassVar[frozenset[str]] = frozenset({"input_bits", "vocabulary"})

    input_bits: Bits = FULL_BITS
    """To which what enters a weight of few bits is rounded: 32 (not at all), 8 or 4."""
    embedding_bits: int = FULL_BITS
    """Of the embeddings of words and positions: 32, 8, 4, 2 or 1."""
    vocabulary: PositiveShare = 1.0
    """Share of the word pieces that the scored model keeps, those that train uses most, in (0, 1]:
    other words fall into smaller pieces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            input_bits=among(self.input_bits, INPUT_BITS),
            embedding_bits=among(self.embedding_bits, WEIGHT_BITS),
        )

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """Bits of each layer want so many layers."""
        super().check_shapes(student, teacher)
        layers = shape_of(student).layers
        for name in ("input_bits", "weight_bits"):
            bits = getattr(self, name, None)
            if isinstance(bits, tuple) and len(bits) != layers:
                raise UserError(
                    f"{type(self).__name__}.{name} has {len(bits)} entries, but the student has "
                    f"{layers} layers; give one number for all layers, or one per layer"
                )

    @abc.abstractmethod
    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """The same units with the bits of the method.

        Args:
            architecture: the units that stay.

        Returns:
            The architecture of the model that is scored.
        """

    def _with_weight_bits(self, architecture: BertArchitecture, bits: Bits) -> BertArchitecture:
        """The same units with these bits for their weights, and the method's for all else."""
        weights, inputs = (
            own if isinstance(own, tuple) else (own,) * len(architecture.layers)
            for own in (bits, self.input_bits)
        )
        return architecture.with_bits(weights, inputs, self.embedding_bits)

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        """R and t of a student before anything is rounded; by default the share of the cost that
        its units have, and 0, as none was asked."""
        return problem.budget.ratio(units), 0.0

    def result(
        self,
        slot: int,
        problem: Problem,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        curve: Sequence[CurvePoint],
    ) -> SearchResult:
        """The model with the bits and the vocabulary of the method, and what share of the cost was
        asked of that.

        Args:
            slot: the place of the student in its population.
            problem: what the method works on.
            model: the student, trained, in float32; it may be changed.
            units: what is left of it.
            curve: of its training.

        Returns:
            What is scored.
        """
        architecture = self.in_bits(units)
        if self.vocabulary < 1:
            pieces = problem.vocabulary.count(self.vocabulary)
            architecture = replace(architecture, vocabulary=pieces)
            keep_pieces(model, problem.vocabulary.kept(pieces))
        cost, (target_ratio, tolerance) = problem.budget.cost, self._asked(problem, units)
        smaller = 1.0 if architecture == units else cost.exact(architecture) / cost.exact(units)
        return SearchResult(
            slot=slot,
            architecture=architecture,
            model=quantised(model, architecture),
            target_ratio=target_ratio * smaller,
            tolerance=tolerance,
            curve=curve,
        )


@dataclass(frozen=True, kw_only=True)
class WeightBits(BertMethod):
    """Base of those whose weights may have any of the bits that there are."""

    per_slot: ClassVar[frozenset[str]] = BertMethod.per_slot | {"weight_bits"}

    weight_bits: Bits = FULL_BITS
    """Of each weight of the scored model, in all layers, or an entry a layer: 32 (not quantised),
    8, 4, 2 (ternary) or 1. R is that of the model before it is quantised."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, weight_bits=among(self.weight_bits, WEIGHT_BITS))

    @property
    def has_binary_weights(self) -> bool:
        """In a layer at least; they have no 0."""
        return 1 in _each(self.weight_bits)

    def idle(self) -> Mapping[str, str]:
        """Inputs are rounded where weights are."""
        if _each(self.weight_bits) == {FULL_BITS}:
            reason = "it rounds the inputs of quantised weights, and there are none"
            return {**super().idle(), "input_bits": reason}
        return super().idle()

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        return self._with_weight_bits(architecture, self.weight_bits)


def among(bits: Bits, allowed: tuple[int, ...]) -> tuple[bool, str]:
    """Whether these are bits that can be had, and which can."""
    known = (FULL_BITS, *allowed)
    return _each(bits) <= set(known), f"one of {', '.join(map(str, known))}"


def _each(bits: Bits) -> set[int]:
    return set(bits) if isinstance(bits, tuple) else {bits}

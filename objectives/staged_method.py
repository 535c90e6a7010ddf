"""What the methods share whose students go through stages: the budget, the stages, the batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.device import Precision
from objectives.errors import UserError, check_ranges
from objectives.measures.budget import discretise
from objectives.measures.cost import CostName
from objectives.problem import Problem
from objectives.search_method import SearchMethod
from objectives.students.bert.architecture import (
    FULL_BITS,
    SPACES,
    BertArchitecture,
    check_spaces,
)
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.packing import INPUT_BITS, WEIGHT_BITS
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.training.flops_lost import flops_lost, flops_to_lose
from objectives.training.losses import check_comparable
from objectives.training.stages import Stage, check_order


@dataclass(frozen=True, kw_only=True)
class StagedMethod(SearchMethod):
    """Base of the methods that `staged_search` takes."""

    costs: ClassVar[frozenset[CostName]] = frozenset(get_args(CostName))
    per_slot: ClassVar[frozenset[str]] = frozenset(
        {"target_ratio", "tolerance", "stages.*.learning_rate", "weight_bits", "input_bits"}
        | {"vocabulary"}
    )
    searchable: ClassVar[tuple[str, ...]] = SPACES
    """What `spaces` may name."""
    with_search: ClassVar[bool] = True
    """Whether stages may search."""
    cut_together: ClassVar[bool] = True
    """Whether a GPU trains the students as one program once they are cut."""

    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units to search, some of `searchable`."""
    target_ratio: float = 0.5
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    tolerance: float = 0.05
    """t: the cut model lies in [(1 - t) R, (1 + t) R]. In [0, 1)."""
    stages: tuple[Stage, ...] = (
        Stage(name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden", keep="best"),
    )
    """What the weights go through, those that search first."""
    batch_size: int = 32
    """Sequences in a batch of `train`, and in one of `alpha`. >= 1."""
    precision: Precision = "auto"
    """Of the matmuls of the students' training, and of the teacher whose hidden states they learn.
    "auto" is bfloat16 where the device has instructions for it, else float32."""
    weight_bits: int | tuple[int, ...] = FULL_BITS
    """Of each weight of the scored model, in all layers, or an entry a layer: 32 (not quantised),
    8, 4, 2 (ternary) or 1. R is that of the model before it is quantised."""
    input_bits: int | tuple[int, ...] = FULL_BITS
    """To which what enters a weight of few bits is rounded: 32 (not at all), 8 or 4."""
    embedding_bits: int = FULL_BITS
    """Of the embeddings of words and positions: 32, 8, 4, 2 or 1."""
    vocabulary: float = 1.0
    """Share of the word pieces that the scored model keeps, those that train uses most, in (0, 1]:
    other words fall into smaller pieces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            {
                "target_ratio": (0 < self.target_ratio <= 1, "in (0, 1]"),
                "tolerance": (0 <= self.tolerance < 1, "in [0, 1)"),
                "batch_size": (self.batch_size >= 1, ">= 1"),
                "weight_bits": _among(self.weight_bits, WEIGHT_BITS),
                "input_bits": _among(self.input_bits, INPUT_BITS),
                "embedding_bits": _among(self.embedding_bits, WEIGHT_BITS),
                "vocabulary": (0 < self.vocabulary <= 1, "in (0, 1]"),
            },
        )
        check_spaces(type(self).__name__, self.spaces, self.searchable)
        check_order(self.stages)
        searching = [stage.name for stage in self.stages if stage.searches]
        if searching and not self.with_search:
            raise UserError(
                f"stages: '{searching[0]}' searches, but {type(self).__name__} has its units "
                "before all stages; set searches=False"
            )

    def idle(self) -> Mapping[str, str]:
        """Inputs are rounded where weights are."""
        if self.weight_bits in (FULL_BITS, (FULL_BITS,) * _length(self.weight_bits)):
            return {"input_bits": "it rounds what enters weights of few bits, and there are none"}
        return {}

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """The same units with the bits of the method.

        Args:
            architecture: the units that stay.

        Returns:
            The architecture of the model that is scored.
        """
        layers = len(architecture.layers)
        weights, inputs = (
            bits if isinstance(bits, tuple) else (bits,) * layers
            for bits in (self.weight_bits, self.input_bits)
        )
        return architecture.with_bits(weights, inputs, self.embedding_bits)

    def entering(
        self,
        stage: Stage,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> tuple[PrunedBertForSequenceClassification, BertArchitecture]:
        """What a cut student enters a stage as; by default as the stage before left it.

        Args:
            stage: which is about to begin, after the search.
            model: the student, in float32.
            units: what is left of it.
            problem: what the method works on.

        Returns:
            The model, and what is left of it.
        """
        del stage, problem
        return model, units

    def shortened(self, share: float) -> Self:
        """The method with this share, in (0, 1], of the epochs of each stage."""
        fewer = tuple(replace(stage, epochs=stage.epochs * share) for stage in self.stages)
        return replace(self, stages=fewer)

    def rate_share(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        """The share of each stage's learning rate at which a student is trained.

        A student that is near its teacher stays there, and one that lost nothing is not trained.
        One that begins as another checkpoint has all to learn.

        Args:
            problem: what the method works on.
            architecture: the units that stay; None while the search goes on.

        Returns:
            In [0, 1]: by default the share of the FLOPs that it lost, or is to lose.
        """
        if problem.student_is_new:
            return 1.0
        if architecture is None:
            return flops_to_lose(problem, self.target_ratio, self.spaces)
        return flops_lost(problem, architecture)

    def within_budget(
        self, scores: Mapping[str, Tensor], problem: Problem, threshold: float = math.inf
    ) -> BertArchitecture:
        """The units of highest score that meet R: see `budget.discretise`.

        Args:
            scores: of each space that is searched, (layers, *units_of(shape, space)); higher stays.
            problem: what the method works on.
            threshold: the units above it stay if they already meet the budget; by default the
                budget alone decides.

        Returns:
            The units that stay.
        """
        return discretise(
            scores,
            problem.cost,
            target=self.target_ratio * problem.cost_full,
            tolerance=self.tolerance,
            threshold=threshold,
        )

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """A loss that compares layers, or heads, wants those of the teacher that are theirs; bits
        of each layer want so many layers."""
        for stage in self.stages:
            check_comparable(stage.loss, shape_of(student), shape_of(teacher))
        layers = shape_of(student).layers
        for name in ("weight_bits", "input_bits"):
            bits = getattr(self, name)
            if isinstance(bits, tuple) and len(bits) != layers:
                raise UserError(
                    f"{type(self).__name__}.{name} has {len(bits)} entries, and the student "
                    f"{layers} layers; give a number for all, or one a layer"
                )


def _among(bits: int | tuple[int, ...], allowed: tuple[int, ...]) -> tuple[bool, str]:
    """Whether these are bits that can be had, and which can."""
    given = bits if isinstance(bits, tuple) else (bits,)
    return set(given) <= {FULL_BITS, *allowed}, f"of {', '.join(map(str, (FULL_BITS, *allowed)))}"


def _length(bits: int | tuple[int, ...]) -> int:
    return len(bits) if isinstance(bits, tuple) else 1

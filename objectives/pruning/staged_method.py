"""Base class of the methods that cut a BERT to a budget and train it in stages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

import torch
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.device import Precision
from objectives.errors import PositiveInt, PositiveShare, ShareBelowOne, UserError, check_ranges
from objectives.measures.budget import discretise
from objectives.measures.cost import Cost, CostName, Flops
from objectives.problem import Problem
from objectives.search_method import CurvePoint, SearchMethod, SearchResult
from objectives.students.bert.architecture import (
    FULL_BITS,
    SPACES_OF_LAYERS,
    BertArchitecture,
    units_of,
)
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.packing import INPUT_BITS, WEIGHT_BITS
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import keep_pieces, quantised
from objectives.training.losses import check_comparable
from objectives.training.stages import RECOVER, Stage, check_order

Bits = int | tuple[int, ...]
"""Bits of all layers, or an entry a layer."""


@dataclass(frozen=True, kw_only=True)
class StagedMethod(SearchMethod):
    """Base of the methods that choose units within a budget and train in stages.

    A method that lacks one of these settings redeclares it as a `ClassVar`: it is then a constant
    of the class and no field."""

    costs: ClassVar[frozenset[CostName]] = frozenset(get_args(CostName))
    per_slot: ClassVar[frozenset[str]] = frozenset(
        {
            *("input_bits", "weight_bits", "vocabulary", "target_ratio", "tolerance"),
            *("stages.*.learning_rate", "stages.*.temperature"),
        }
    )
    searchable: ClassVar[tuple[str, ...]] = SPACES_OF_LAYERS
    """Values that `spaces` may name; empty if no units are chosen."""
    with_search: ClassVar[bool] = True
    """Whether stages may search."""
    cut_together: ClassVar[bool] = True
    """Whether a GPU trains the students as one program once they are cut."""

    input_bits: Bits = FULL_BITS
    """Bits of the inputs of quantised weights: 32 (not quantised), 8 or 4."""
    embedding_bits: int = FULL_BITS
    """Bits of the embeddings of words and positions: 32, 8, 4, 2 or 1."""
    vocabulary: PositiveShare = 1.0
    """Share of the word pieces that stay, those that train uses most; others split. In (0, 1]."""
    weight_bits: Bits = FULL_BITS
    """Bits of each weight of the scored model, in all layers, or an entry a layer: 32 (not
    quantised), 8, 4, 2 (ternary) or 1. R is that of the model before it is quantised."""
    stages: tuple[Stage, ...] = (RECOVER,)
    """Stages of the weights, those that search first; by default 3 epochs at 3e-4 after the cut,
    logits and hidden states, the best kept."""
    batch_size: PositiveInt = 32
    """Sequences in a batch of `train`, and in one of `alpha`. >= 1."""
    precision: Precision = "auto"
    """Precision of the matmuls of the students' training, and of the teacher whose hidden states
    they learn. "auto" is bfloat16 where the device has instructions for it, else float32."""
    target_ratio: PositiveShare = 0.5
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    tolerance: ShareBelowOne = 0.05
    """t: the cut model lies in [(1 - t) R, (1 + t) R]. In [0, 1)."""
    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units, some of `searchable`: heads, ffn, qk, v, input (or input_qkv), layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            input_bits=among(self.input_bits, INPUT_BITS),
            embedding_bits=among(self.embedding_bits, WEIGHT_BITS),
            weight_bits=among(self.weight_bits, WEIGHT_BITS),
        )
        check_order(self.stages)
        searching = [stage.name for stage in self.stages if stage.searches]
        if searching and not self.with_search:
            raise UserError(
                f"stages: '{searching[0]}' searches, but {type(self).__name__} chooses its "
                "units before the first stage; set searches=False"
            )
        if self.searchable:
            _check_spaces(type(self).__name__, self.spaces, self.searchable)

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        layers = shape_of(student).layers
        for name in ("input_bits", "weight_bits"):
            bits = getattr(self, name)
            if isinstance(bits, tuple) and len(bits) != layers:
                raise UserError(
                    f"{type(self).__name__}.{name} has {len(bits)} entries, but the student has "
                    f"{layers} layers; give one number for all layers, or one per layer"
                )
        for stage in self.stages:
            check_comparable(stage.loss, student, teacher)

    def inactive(self) -> Mapping[str, str]:
        inactive = {}
        if _each(self.weight_bits) == {FULL_BITS}:
            inactive["input_bits"] = "it rounds the inputs of quantised weights, and there are none"
        for stage in self.stages:
            reason = f"the loss of the stage is {stage.loss!r}"
            if "+" not in stage.loss:
                inactive[f"stages.{stage.name}.hidden_weight"] = reason
            if not stage.loss.startswith("prediction"):
                inactive[f"stages.{stage.name}.temperature"] = reason
        return inactive

    def scale_epochs(self, share: float) -> Self:
        if not self.stages:
            return super().scale_epochs(share)
        fewer = tuple(replace(stage, epochs=stage.epochs * share) for stage in self.stages)
        return replace(self, stages=fewer)

    def within_budget(
        self, scores: Mapping[str, Tensor], problem: Problem, threshold: float = math.inf
    ) -> BertArchitecture:
        """The units of highest score that meet R: see `budget.discretise`.

        Args:
            scores: of each space that is searched, (layers, *units_of(shape, space)); higher stays.
            problem: what the method works on.
            threshold: units above it stay if these meet the budget, which alone decides without.

        Returns:
            The units that stay.
        """
        target, t = self.target_ratio * problem.budget.full, self.tolerance
        return discretise(
            scores, problem.budget.cost, target=target, tolerance=t, threshold=threshold
        )

    @property
    def has_binary_weights(self) -> bool:
        """Whether a layer has weights of one bit, which have no 0."""
        return 1 in _each(self.weight_bits)

    @property
    def keeps_zeros(self) -> bool:
        """Whether weights of the layers that are 0 after the cut stay 0 in the stages."""
        return False

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """Set the bits of the method.

        Args:
            architecture: the units that stay.

        Returns:
            The architecture of the model that is scored.
        """
        return self._with_weight_bits(architecture, self.weight_bits)

    def _with_weight_bits(self, architecture: BertArchitecture, bits: Bits) -> BertArchitecture:
        """Set these bits for the weights of an architecture, and the method's for all else."""
        layers = len(architecture.layers)
        weights, inputs = (
            bits_of if isinstance(bits_of, tuple) else (bits_of,) * layers
            for bits_of in (bits, self.input_bits)
        )
        return architecture.with_bits(weights, inputs, self.embedding_bits)

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        """R and t of a student before anything is rounded."""
        # A student of some layers of its teacher is at most as large as these are.
        most = problem.budget.cost.full / problem.budget.full
        return min(self.target_ratio, most), self.tolerance

    def result(
        self,
        slot: int,
        problem: Problem,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        curve: Sequence[CurvePoint],
    ) -> SearchResult:
        """A trained student, rounded and with its own vocabulary.

        Args:
            slot: its index in its population.
            problem: what the method works on.
            model: the student, trained, in float32; it may be changed.
            units: what is left of it.
            curve: of its training.

        Returns:
            The student to score, with the share of the cost that was asked of it in these bits.
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
            # R and what the masks left open are shares in the same pieces and bits.
            curve=[
                {n: float(v) * smaller if n == "open_ratio" else v for n, v in point.items()}
                for point in curve
            ],
        )

    def entering(
        self,
        stage: Stage,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> tuple[PrunedBertForSequenceClassification, BertArchitecture]:
        """A cut student as it enters a stage; by default as it left the last.

        Args:
            stage: which is about to begin, after the search.
            model: the student, in float32.
            units: what is left of it.
            problem: what the method works on.

        Returns:
            The model, and what is left of it.
        """
        return model, units

    def lr_scale(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        """The share of each stage's learning rate at which a student is trained.

        Args:
            problem: what the method works on.
            architecture: the units that stay; None while the search goes on.

        Returns:
            In [0, 1]: by default the share of the FLOPs that it lost, or is to lose.
        """
        # A student near its teacher stays there, and one that lost nothing is not trained. One that
        # begins as another checkpoint, or with its sublayers in another order, has all to learn.
        if problem.student_is_new or (architecture is not None and architecture.order):
            return 1.0
        if architecture is None:
            return flops_to_lose(problem, self.target_ratio, self.spaces)
        return flops_lost(problem, architecture)


def check_searches(method: StagedMethod) -> None:
    """Refuse a method of which no stage searches though its alpha learns in those."""
    if not any(stage.searches for stage in method.stages):
        raise UserError(
            f"{type(method).__name__}.stages: none of them searches; alpha would learn nothing"
        )


def _check_spaces(owner: str, spaces: Sequence[str], searchable: Sequence[str]) -> None:
    """Raise UserError unless the owner's are spaces that can be searched, and together."""
    wrong = None
    if not spaces or not set(spaces) <= set(searchable):
        wrong = f"it must name some of {', '.join(searchable)}"
    elif len(set(spaces)) < len(spaces):
        wrong = "it must name each one once"
    elif {"input", "input_qkv"} <= set(spaces):
        wrong = (
            "'input' (one set for Q, K and V) and 'input_qkv' (a set for each) exclude one another"
        )
    if wrong:
        raise UserError(f"{owner}.spaces is {tuple(spaces)!r}; {wrong}")


def among(bits: Bits, allowed: tuple[int, ...]) -> tuple[bool, str]:
    """Whether all these bits are allowed, and a text of which are."""
    choices = (FULL_BITS, *allowed)
    return _each(bits) <= set(choices), f"one of {', '.join(map(str, choices))}"


def _each(bits: Bits) -> set[int]:
    return set(bits) if isinstance(bits, tuple) else {bits}


# The rate of a student goes by the share of its FLOPs that it loses, whatever a study counts: every
# unit that is cut saves FLOPs. It may save no milliseconds, and only a small share of the
# parameters, most of which may be embeddings.


def flops_lost(problem: Problem, architecture: BertArchitecture) -> float:
    """The share of the teacher's FLOPs that a student of this architecture lacks."""
    return _lost(problem, Flops(problem.shape, problem.seq_len).exact(architecture))


def flops_to_lose(problem: Problem, target_ratio: float, spaces: tuple[str, ...]) -> float:
    """The share of the teacher's FLOPs that a student will lack at a target ratio."""
    cost, flops = problem.budget.cost, Flops(problem.shape, problem.seq_len)
    if isinstance(cost, Flops):
        return 1 - target_ratio
    # As if the same share of each of the searched kinds of units went.
    least, least_flops = _least(cost, spaces), _least(flops, spaces)
    kept_share = (target_ratio * problem.budget.full - least) / ((cost.full - least) or 1.0)
    kept_share = min(1.0, max(0.0, kept_share))
    return _lost(problem, least_flops + kept_share * (flops.full - least_flops))


def _lost(problem: Problem, flops: float) -> float:
    return 1 - flops / Flops(shape_of(problem.teacher.config), problem.seq_len).full


def _least(cost: Cost, spaces: tuple[str, ...]) -> float:
    """The cost that is left when all units of these spaces are closed."""
    shape = cost.shape
    closed = {space: torch.zeros(1, shape.layers, *units_of(shape, space)) for space in spaces}
    return cost.expected(closed).item()

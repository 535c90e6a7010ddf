"""What the methods share that cut a student to a budget, and those that train it in stages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.bert_method import BertMethod, WeightBits
from objectives.device import Precision
from objectives.errors import PositiveInt, PositiveShare, ShareBelowOne, UserError
from objectives.measures.budget import discretise
from objectives.problem import Problem
from objectives.students.bert.architecture import SPACES_OF_LAYERS, BertArchitecture, check_spaces
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.training.flops_lost import flops_lost, flops_to_lose
from objectives.training.losses import check_comparable
from objectives.training.stages import RECOVER, Stage, check_order


@dataclass(frozen=True, kw_only=True)
class Targeted(BertMethod):
    """Base of the methods whose students have a budget."""

    per_slot: ClassVar[frozenset[str]] = BertMethod.per_slot | {"target_ratio", "tolerance"}

    target_ratio: PositiveShare = 0.5
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    tolerance: ShareBelowOne = 0.05
    """t: the cut model lies in [(1 - t) R, (1 + t) R]. In [0, 1)."""

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        return self.target_ratio, self.tolerance


@dataclass(frozen=True, kw_only=True)
class Budgeted(Targeted):
    """Base of the methods that choose units within a budget."""

    searchable: ClassVar[tuple[str, ...]] = SPACES_OF_LAYERS
    """What `spaces` may name."""

    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units to search, some of `searchable`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_spaces(type(self).__name__, self.spaces, self.searchable)

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
            problem.budget.cost,
            target=self.target_ratio * problem.budget.full,
            tolerance=self.tolerance,
            threshold=threshold,
        )


@dataclass(frozen=True, kw_only=True)
class Staged(BertMethod):
    """Base of the methods that `staged_search` takes."""

    per_slot: ClassVar[frozenset[str]] = BertMethod.per_slot | {
        "stages.*.learning_rate",
        "stages.*.temperature",
    }
    with_search: ClassVar[bool] = True
    """Whether stages may search."""
    cut_together: ClassVar[bool] = True
    """Whether a GPU trains the students as one program once they are cut."""

    stages: tuple[Stage, ...] = (RECOVER,)
    """What the weights go through, those that search first; by default 3 epochs at 3e-4 after the
    cut, logits and hidden states, the best kept."""
    batch_size: PositiveInt = 32
    """Sequences in a batch of `train`, and in one of `alpha`. >= 1."""
    precision: Precision = "auto"
    """Of the matmuls of the students' training, and of the teacher whose hidden states they learn.
    "auto" is bfloat16 where the device has instructions for it, else float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self.stages)
        searching = [stage.name for stage in self.stages if stage.searches]
        if searching and not self.with_search:
            raise UserError(
                f"stages: '{searching[0]}' searches, but {type(self).__name__} chooses its "
                "units before the first stage; set searches=False"
            )

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """A loss that compares layers, or heads, wants those of the teacher that are theirs."""
        super().check_shapes(student, teacher)
        for stage in self.stages:
            check_comparable(stage.loss, student, teacher)

    def shortened(self, share: float) -> Self:
        """The method with this share, in (0, 1], of the epochs of each stage. Raises UserError for
        less than all of no stages."""
        if not self.stages:
            return super().shortened(share)
        fewer = tuple(replace(stage, epochs=stage.epochs * share) for stage in self.stages)
        return replace(self, stages=fewer)

    @property
    def keeps_zeros(self) -> bool:
        """Whether weights of the layers that are 0 after the cut stay 0 in the stages."""
        return False

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
        return model, units

    def rate_share(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        """The share of each stage's learning rate at which a student is trained.

        A student that is near its teacher stays there, and one that lost nothing is not trained.
        One that begins as another checkpoint, or with its sublayers in another order, has all to
        learn.

        Args:
            problem: what the method works on.
            architecture: the units that stay; None while the search goes on.

        Returns:
            In [0, 1]: by default the share of the FLOPs that it lost.
        """
        if problem.student_is_new or architecture is None or architecture.order:
            return 1.0
        return flops_lost(problem, architecture)


@dataclass(frozen=True, kw_only=True)
class StagedMethod(Budgeted, Staged, WeightBits):
    """Base of the methods that choose units within a budget and train in stages."""

    per_slot: ClassVar[frozenset[str]] = Budgeted.per_slot | Staged.per_slot | WeightBits.per_slot

    def rate_share(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        """The share of the FLOPs that a student lost, or is to lose while the search goes on."""
        if architecture is None and not problem.student_is_new:
            return flops_to_lose(problem, self.target_ratio, self.spaces)
        return super().rate_share(problem, architecture)

"""Elastic search: one training for all trials of a run, a gradient search over masks in each."""

# The first trial trains one student at many sizes (`training.py`), along the order of the
# scores of its units; it is kept for the run. A trial begins with the units of highest score that
# meet R, searches by gradient how many units each layer keeps (`ordered_masks.py`), cuts, and is
# scored. With `stages` it is distilled further on its own. Where that pays: docs/elastic.md.

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.configuration_utils import PreTrainedConfig

from objectives.cache import content_key
from objectives.device import matmul_dtype
from objectives.errors import (
    InnerShare,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserError,
    check_ranges,
)
from objectives.measures.budget import ranks_of
from objectives.measures.evaluate import nearness
from objectives.methods.elastic.ordered_masks import OrderedMasks
from objectives.methods.elastic.training import ElasticTraining, shared_student
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.importance import evenly, importance_of_student, per_cost
from objectives.pruning.slices import Model, Order, along, layers_at, uniform
from objectives.pruning.staged_method import StagedMethod, among
from objectives.pruning.staged_search import Chosen, staged_search
from objectives.search_method import Outcome, SearchFailure
from objectives.students.bert.architecture import BertArchitecture, units_of
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.packing import WEIGHT_BITS
from objectives.students.bert.pretrained import Classifier
from objectives.students.bert.quantising import quantised
from objectives.training.fitting import Shared
from objectives.training.losses import check_comparable
from objectives.training.stages import Stage

ELASTIC = Stage(name="elastic", epochs=18, learning_rate=6e-4, loss="prediction+hidden")
"""The training that all trials share. Commit 4a646a4 has its rate beside others."""

DEPTH = replace(ELASTIC, name="depth")
_WAY_BACK = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the trained weights back to where they began."""
_ROWS = 256
"""Rows of alpha that judge weights on the way back."""


@dataclass(frozen=True, kw_only=True)
class ElasticSearch(StagedMethod):
    """Train one student at all sizes, then search masks on it by gradient in each trial."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}
    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")
    with_search: ClassVar[bool] = False

    flops_weight: NonNegativeFloat = 0.1
    """lambda: weight of the FLOPs loss beside the loss of the answers. >= 0."""
    grad_rescale: PositiveFloat = 2.0
    """kappa: factor on the gradient that reaches alpha. > 0."""
    search_steps: NonNegativeInt = 16
    """Steps of the search, each on `batch_size` rows of `alpha`. 0: the ranking alone decides."""
    cost_power: NonNegativeFloat = 0.9
    """Power of its cost that a unit's score is divided by, in the order of the training. >= 0."""
    heads: tuple[int, ...] = ()
    """How many heads each layer keeps, in [0, its heads], the first in the order of the training;
    a knob "heads[0]" is the width of a layer. Empty: the search decides."""
    ffn: tuple[int, ...] = ()
    """Numbers of neurons, likewise."""
    elastic: Stage = ELASTIC
    """The training that all trials of a run share."""
    sizes: PositiveInt = 3
    """Sizes that a step of it trains at. >= 1."""
    smallest: InnerShare = 0.05
    """The smallest of them, as a share of the unpruned student's cost. In (0, 1)."""
    shares: tuple[float, ...] = ()
    """Instead of `sizes` the widths that each step trains at: of every layer the same share of its
    heads and of its neurons, in (0, 1], rising. All layers of a trial are then cut alike, too."""
    depths: tuple[float, ...] = ()
    """After that training the depths of one more, at each of these widths: shares of the layers in
    (0, 1), rising. Each model learns from the student of the training before, at its own width."""
    deepen: Stage = DEPTH
    """The training of the depths."""
    depth: float = 1.0
    """Share m of the layers that a trial keeps, one of `depths` or 1: layer floor(i / m) for each
    i < round(m layers). An R above what these hold cannot be met."""
    trained_bits: tuple[int, ...] = ()
    """Bits drawn with a size of a step (32, 8, 4, 2 or 1) for weights and embeddings, as trials of
    few `weight_bits` are then trained for these; inputs of few have 8. Empty: float32."""
    stages: tuple[Stage, ...] = ()
    """Stages of each trial after it is cut; none by default, as it is trained already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares_rise = all(a < b for a, b in pairwise((0, *self.shares, 1 + 1e-9)))
        depths_rise = all(a < b for a, b in pairwise((0, *self.depths, 1)))
        good = depths_rise and bool(self.shares or not self.depths)
        check_ranges(
            self,
            shares=(shares_rise, "shares in (0, 1], rising"),
            depths=(good, "shares in (0, 1), rising; and none without `shares`"),
            depth=(self.depth in (*self.depths, 1), "1 or one of `depths`"),
            trained_bits=among(self.trained_bits, WEIGHT_BITS),
        )
        for space, widths in self._widths().items():
            if space not in self.spaces:
                raise UserError(f"ElasticSearch.{space} is set, but spaces is {self.spaces!r}")
            check_ranges(self, **{space: (min(widths) >= 0, ">= 0 in each layer")})
        for field, stage in (("elastic", self.elastic), ("deepen", self.deepen)):
            compared = stage.loss in ("prediction", "prediction+hidden")
            if not compared or stage.searches or stage.quantised:
                raise UserError(
                    f"ElasticSearch.{field}: the training of many sizes cannot search or be "
                    "quantised, and its loss must be 'prediction' or 'prediction+hidden'"
                )
            for name, only in (("keep", "last"), ("start", "previous")):
                if (given := getattr(stage, name)) != only:
                    raise UserError(
                        f"ElasticSearch.{field}.{name} is {given!r}; the training of many sizes "
                        "begins with the student and ends with its last weights: leave it out"
                    )

    @classmethod
    def dynabert(cls, **changes: Any) -> Self:
        """DynaBERT (Hou et al. 2020), in the ways of this package.

        As there: heads and neurons in the order of their importance, the widths 1/4, 1/2, 3/4 and 1
        of all layers in each step, the logits' loss and a tenth of the hidden states', 3 epochs at
        a rate of 2e-5. Then as many of the depths 1/2, 3/4 and 1 at each width, unless `depths=()`,
        with all of the hidden states' loss, taught by the student of the first phase at the same
        width (its code takes the whole one). Tune `depth` and `target_ratio`.

        Other than there: units are ordered by Fisher information on the `alpha` split, not by
        gradients on labels of the dev set. Each model of a step has rows of its own: in 3 epochs a
        width sees 3/4 of the rows, then each depth at a width 1/4. The loss of the hidden states
        has no embeddings', which are frozen. No dropout, no clipping, no augmentation (see
        `Study.augmentation`), no last fine-tuning on labels.

        Args:
            **changes: other fields, such as target_ratio=0.25.

        Returns:
            The method.
        """
        stage = replace(ELASTIC, epochs=3, learning_rate=2e-5, hidden_weight=0.1)
        widths = {"shares": (0.25, 0.5, 0.75, 1.0), "elastic": stage}
        deepen = replace(stage, name="depth", hidden_weight=1.0)
        return cls(**{**widths, "depths": (0.5, 0.75), "deepen": deepen, **changes})

    def scale_epochs(self, share: float) -> Self:
        elastic, deepen = (
            replace(stage, epochs=stage.epochs * share) for stage in (self.elastic, self.deepen)
        )
        shorter = super().scale_epochs(share) if self.stages else self
        return replace(shorter, elastic=elastic, deepen=deepen)

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        super().check_shapes(student, teacher)
        shape = shape_of(student)
        check_comparable(self.elastic.loss, student, teacher)
        if round(min(self.depths, default=1) * shape.layers) < 1:
            raise UserError(
                f"ElasticSearch.depths is {self.depths}: {self.depths[0]} of {shape.layers} layers "
                "is none; leave it out"
            )
        for space, widths in self._widths().items():
            (units,) = units_of(shape, space)
            if len(widths) != shape.layers or max(widths) > units:
                raise UserError(
                    f"ElasticSearch.{space} is {widths!r}; the student has {shape.layers} layers "
                    f"of {units} {space}: give one number from 0 to {units} per layer"
                )

    def inactive(self) -> Mapping[str, str]:
        inactive = dict(super().inactive())
        if self.shares:
            of_path = ("cost_power", "sizes", "smallest", "search_steps")
            inactive |= dict.fromkeys(of_path, "shares cut all layers alike")
        if not self.depths:
            inactive |= dict.fromkeys(("deepen", "depth"), "there are no depths")
        if self._all_given():
            of_choice = ("target_ratio", "tolerance", "search_steps")
            inactive |= dict.fromkeys(of_choice, "all widths are given")
        if not self._searches():
            inactive |= dict.fromkeys(("flops_weight", "grad_rescale"), "no masks are searched")
        return inactive

    def _widths(self) -> dict[str, tuple[int, ...]]:
        given = {"heads": self.heads, "ffn": self.ffn}
        return {space: widths for space, widths in given.items() if widths}

    def _searches(self) -> bool:
        return bool(self.search_steps) and not self.shares and not self._all_given()

    def _all_given(self) -> bool:
        return len(self._widths()) == len(self.spaces)

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        """R, or what given widths come to."""
        if self._all_given():
            return problem.budget.ratio(units), self.tolerance
        return super()._asked(problem, units)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Train the student of all, unless the run has it, and cut one for each member."""
        first = members[0]
        try:
            shared = first._shared(problem, seed, progress)
        except FloatingPointError as error:
            yield from (SearchFailure(slot, str(error)) for slot in range(len(members)))
            return
        scores, curves = first._scores(problem), [list(shared.curve) for _ in members]
        chosen = [member.within_budget(scores, problem) for member in members]
        if first._searches():
            masks = OrderedMasks(
                members, problem, scores, chosen, batch_size=first.batch_size, seed=seed
            )
            dtype = matmul_dtype(first.precision, problem.device)
            searched = masks.search(shared.model, first.search_steps, dtype, progress)
            curves = [[*curve, *more] for curve, more in zip(curves, searched, strict=True)]
            # Alpha 0 is a mask of a half: what is above it was left open.
            chosen = [
                member.within_budget(masks.scores(index), problem, threshold=0.0)
                for index, member in enumerate(members)
            ]
        pairs, alpha = zip(members, chosen, strict=True), Chosen(chosen)
        students = [member._weights_for(problem, shared.model, units) for member, units in pairs]
        yield from staged_search(
            members, problem, alpha, seed=seed, progress=progress, students=students, curves=curves
        )

    def _shared(
        self, problem: Problem, seed: int, progress: Progress
    ) -> Shared[BertForSequenceClassification]:
        """The student that all trials of a run are cut from, trained by the first of them."""
        dtype = matmul_dtype(self.precision, problem.device)
        decide = ["spaces", "batch_size", "sizes", "smallest", "cost_power", "shares"]
        decide += ["trained_bits"] if self.trained_bits else []
        ingredients = {name: getattr(self, name) for name in decide}
        ingredients |= {"elastic": asdict(self.elastic), "precision": str(dtype), "seed": seed}
        cost = problem.budget.cost
        widths = uniform(self.shares, self.spaces, cost.shape)

        def training(
            begun: Problem, models: Sequence[Model], stage: Stage, **own: Any
        ) -> ElasticTraining:
            """In the order of the student of the run, whatever `begun` begins with."""
            return ElasticTraining(
                begun,
                Order.by_scores(cost.shape, self._ranked(problem)),
                models,
                stage,
                sizes=len(models) if self.shares else self.sizes,
                batch_size=self.batch_size,
                seed=seed,
                dtype=dtype,
                bits=self.trained_bits,
                **own,
            )

        def prepare() -> ElasticTraining:
            models = widths or along(self._ranked(problem), self.smallest, cost)
            return training(problem, models, self.elastic)

        wide = shared_student(problem, ingredients, prepare, progress)
        if not self.depths:
            return wide
        of_wide = problem.once(
            ("wide", content_key(ingredients)),
            lambda: replace(problem, student=wide.model, teacher=wide.model),
        )

        def prepare_depths() -> ElasticTraining:
            taught_by: dict[Model, Model] = {}
            for depth in (*self.depths, 1.0):
                models = uniform(self.shares, self.spaces, cost.shape, depth)
                taught_by |= zip(models, widths, strict=True)
            return training(of_wide, [*taught_by], self.deepen, taught_by=taught_by)

        ingredients |= {"depths": self.depths, "deepen": asdict(self.deepen)}
        deep = shared_student(of_wide, ingredients, prepare_depths, progress)
        return deep._replace(curve=[*wide.curve, *deep.curve])

    def _weights_for(
        self, problem: Problem, trained: Classifier, units: BertArchitecture
    ) -> Classifier:
        """The uncut model that a trial of these units is cut from, chosen in the trial's bits."""
        return nearest(problem, trained, units, self.in_bits(units))

    def _scores(self, problem: Problem) -> dict[str, Tensor]:
        """Scores in the order of the training, (layers, units); given widths are infinite."""
        scores = self._ranked(problem)
        if self.depth < 1:
            scores["layers"] = torch.full((problem.shape.layers, 1), -math.inf)
            scores["layers"][layers_at(self.depth, problem.shape.layers)] = math.inf
        for space, widths in self._widths().items():
            stays = ranks_of(scores[space]) < torch.tensor(widths)[:, None]
            scores[space] = torch.where(stays, math.inf, -math.inf)
        return scores

    def _ranked(self, problem: Problem) -> dict[str, Tensor]:
        scores = importance_of_student(problem, self.spaces, "logits")
        if self.shares:
            return evenly(scores)
        return per_cost(scores, problem.budget.cost, self.cost_power)


def between(trained: Classifier, begun: Classifier, share: float) -> dict[str, Tensor]:
    """The weights at this share of the way back: at 0 those of `trained`, at 1 those of `begun`."""
    ends = zip(trained.state_dict().items(), begun.state_dict().values(), strict=True)
    return {name: torch.lerp(end, back, share) for (name, end), back in ends}


def nearest(
    problem: Problem, trained: Classifier, units: BertArchitecture, in_bits: BertArchitecture
) -> Classifier:
    """Weights between `trained` and the problem's student that, cut, answer like the teacher."""
    # A student that is trained at all sizes moves away from its teacher for the sake of the small
    # ones. A large cut is nearer with weights between the two ends (after WiSE-FT, Wortsman et al.
    # 2022): the nearly whole model with those of the beginning, a model below half of the FLOPs
    # with the trained.
    if problem.student_is_new:  # it does not know the task
        return trained
    rows = np.random.default_rng(0).permutation(len(problem.alpha))[:_ROWS]
    judging, wanted = problem.alpha.at(rows), problem.alpha_logits[torch.from_numpy(rows)].cpu()

    def near(share: float) -> float:
        weights = between(trained, problem.student, share)
        smaller = quantised(cut(weights, trained.config, units), in_bits)
        return nearness(smaller, judging, wanted, problem.device)

    share = max(_WAY_BACK, key=near)
    if not share:
        return trained
    model = copy.deepcopy(trained)
    model.load_state_dict(between(trained, problem.student, share))
    return model

"""Elastic search: one training for all trials of a run, each of which is cut from it.

The first trial trains one student at many sizes (`training/elastic.py`), along the order of what
its units are worth; it is kept for the run. A trial then chooses its units, cuts, and is scored.
With `stages` it is distilled further on its own.

It is made for fronts of many trials: docs/elastic.md says where it pays, and where a training for
each is still nearer to the teacher.

What is trained along one order knows that path. So the units of a layer always go in the order of
the training; what a trial may choose is how many of them each layer keeps.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.cache import content_key
from objectives.device import matmul_dtype, to_device
from objectives.errors import UserError, check_ranges
from objectives.measures.budget import places, units_that_fit
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure, SearchResult
from objectives.staged_method import StagedMethod
from objectives.strategies.importance import importance_at, importance_of_student
from objectives.strategies.one_shot import Chosen, OneShot, evenly
from objectives.students.bert.architecture import BertArchitecture, BertShape, units_of
from objectives.training.losses import check_comparable
from objectives.training.population import EMBEDDINGS
from objectives.training.stages import Loss, Stage
from objectives.training.teacher_states import keep_states
from objectives.weights.elastic import ElasticTraining, Model, Order
from objectives.weights.independent import staged_search

ELASTIC = Stage(name="elastic", epochs=18, learning_rate=6e-4, loss="prediction+hidden")
"""The training that all trials share. docs/elastic.md has its rate beside others."""
_GRID = 65
"""Sizes that a step draws from, geometric from the smallest to the whole."""
_POINTS = 200
"""Rows at most of the training's learning curve, which each trial keeps."""
_TINY = 1e-300
"""For what is worth nothing, in a quotient."""
_WEIGHTS, _CURVE, _CHECKPOINT = "model.safetensors", "curve.json", "checkpoint.safetensors"


@dataclass(frozen=True, kw_only=True)
class ElasticSearch(OneShot):
    """One training for all sizes, along the order of Fisher information per FLOP."""

    per_slot: ClassVar[frozenset[str]] = OneShot.per_slot | {"flops_weight", "grad_rescale"}
    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    flops_weight: float = 0.9
    """lambda: the power of its price that a unit's worth is divided by; 1 ranks by worth per FLOP,
    less favours heads, the dear units, more favours neurons. >= 0."""
    grad_rescale: float = 0.0
    """kappa: share of worths that are measured anew, on the trained student at R, in those that
    divide the budget among the layers. In [0, 1]."""
    heads: tuple[int, ...] = ()
    """How many heads each layer keeps, in [0, its heads], the first in the order of the training;
    a knob "heads[0]" is the width of a layer. Empty: as many as they are worth at R."""
    ffn: tuple[int, ...] = ()
    """The same of neurons."""
    elastic: Stage = ELASTIC
    """The training that all trials of a run share."""
    sizes: int = 3
    """Sizes that a step of it trains at. >= 1."""
    smallest: float = 0.05
    """The smallest of them, as a share of the unpruned student's cost. In (0, 1)."""
    shares: tuple[float, ...] = ()
    """In place of `sizes` the widths that each step trains at: of every layer the same share of its
    heads and of its neurons, in (0, 1], rising. All layers of a trial are then cut alike, too."""
    trained_flops_weight: float = 0.9
    """The flops_weight of the sizes that are trained. >= 0."""
    stages: tuple[Stage, ...] = ()
    """What each trial goes through on its own after it is cut; none, as it is trained already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            {
                "flops_weight": (self.flops_weight >= 0, ">= 0"),
                "grad_rescale": (0 <= self.grad_rescale <= 1, "in [0, 1]"),
                "sizes": (self.sizes >= 1, ">= 1"),
                "smallest": (0 < self.smallest < 1, "in (0, 1)"),
                "trained_flops_weight": (self.trained_flops_weight >= 0, ">= 0"),
                "shares": (
                    all(a < b for a, b in pairwise((0, *self.shares, 1 + 1e-9))),
                    "shares in (0, 1], rising",
                ),
            },
        )
        for space, widths in self._widths().items():
            if space not in self.spaces:
                raise UserError(f"ElasticSearch.{space} is set, and spaces names {self.spaces!r}")
            check_ranges(self, {space: (min(widths) >= 0, ">= 0 in each layer")})
        if self.elastic.loss == "intermediate" or self.elastic.searches or self.elastic.quantised:
            raise UserError(
                "ElasticSearch.elastic: a training of many sizes does not search, is not "
                "quantised, and its loss is 'prediction' or 'prediction+hidden'"
            )
        for name, only in (("keep", "last"), ("start", "previous")):
            if (given := getattr(self.elastic, name)) != only:
                raise UserError(
                    f"ElasticSearch.elastic.{name} is {given!r}; the training of many sizes begins "
                    "with the student and ends with its last weights: leave it out"
                )

    @classmethod
    def dynabert(cls, **changes: Any) -> Self:
        """The width phase of DynaBERT (Hou et al. 2020), in the ways of this package.

        As there: heads and neurons in the order of their importance, the widths 1/4, 1/2, 3/4 and 1
        of all layers in each step, the logits' loss and a tenth of the hidden states', 3 epochs at
        a rate of 2e-5.

        Other than there: units are ordered by the Fisher information of the answers on the `alpha`
        split, not by gradients on the labels of the dev set (which its code adds up over batches
        without zeroing them). Each width has rows of its own. The loss of the hidden states is that
        of the cut layers, without the embeddings'. No dropout, no clipping; embeddings are frozen.
        The depth phase is not here, nor data augmentation (see `Study.augmentation`) nor a last
        fine-tuning on labels.

        Args:
            **changes: other fields, such as target_ratio=0.25.

        Returns:
            The method.
        """
        loss: Loss = "prediction+hidden"
        stage = Stage(name="elastic", epochs=3, learning_rate=2e-5, loss=loss, hidden_weight=0.1)
        return cls(**{"shares": (0.25, 0.5, 0.75, 1.0), "elastic": stage, **changes})

    def shortened(self, share: float) -> Self:
        """With this share of the epochs of the training of all, too."""
        elastic = replace(self.elastic, epochs=self.elastic.epochs * share)
        return replace(super().shortened(share), elastic=elastic)

    def check_shapes(self, student: BertShape, teacher: BertShape) -> None:
        """The losses can compare the student with the teacher, and it is as wide as is asked."""
        super().check_shapes(student, teacher)
        check_comparable(self.elastic.loss, student, teacher)
        for space, widths in self._widths().items():
            (units,) = units_of(student, space)
            if len(widths) != student.layers or max(widths) > units:
                raise UserError(
                    f"ElasticSearch.{space} is {widths!r}; the student has {student.layers} layers "
                    f"of {units} {space}: give so many numbers from 0 to {units}"
                )

    def idle(self) -> Mapping[str, str]:
        """Where widths are given, what would choose them. (Unlike in other one-shot methods batch
        and precision act without stages, in the training of all, and the tolerance says where the
        units may end.)"""
        of_bits = StagedMethod.idle(self)
        names = ("target_ratio", "tolerance", "flops_weight", "grad_rescale") * self._all_given()
        of_path = ("flops_weight", "grad_rescale", "trained_flops_weight", "sizes", "smallest")
        return {
            **of_bits,
            **dict.fromkeys(of_path * bool(self.shares), "shares cut all layers alike"),
            **dict.fromkeys(names, "all widths are given"),
        }

    def _widths(self) -> dict[str, tuple[int, ...]]:
        """Those that are given, of each space."""
        given = {"heads": self.heads, "ffn": self.ffn}
        return {space: widths for space, widths in given.items() if widths}

    def _all_given(self) -> bool:
        return len(self._widths()) == len(self.spaces)

    def choose(self, problem: Problem, seed: int) -> BertArchitecture:
        """The units of highest worth; within t of R they end where worth falls most. Of a space
        whose widths are given the first units."""
        worth = self.worth(problem, seed)
        for space, widths in self._widths().items():
            stays = places(worth[space]) < torch.tensor(widths)[:, None]
            worth[space] = torch.where(stays, math.inf, -math.inf)
        target = self.target_ratio * problem.cost_full
        few, many = (
            units_that_fit(worth, problem.cost, limit=share * target)
            for share in (1 - self.tolerance, 1 + self.tolerance)
        )
        between = torch.cat([value[many[space] & ~few[space]] for space, value in worth.items()])
        values = between.double().clamp_min(_TINY).sort(descending=True).values
        falls = values[:-1] / values[1:]
        threshold = float(values[falls.argmax() + 1]) if len(falls) else math.inf
        return self.within_budget(worth, problem, threshold)

    def worth(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Fisher information, (layers, units) of each space, per price to the power of lambda.

        A part kappa of it is that of the trained student at R, in each layer handed out in the
        order of the training.
        """
        worth = importance_of_student(problem, self.spaces, "logits")
        if self.grad_rescale:
            chosen = self.within_budget(self._per_price(worth, problem), problem)
            masks = {
                space: torch.tensor(rows, dtype=torch.float32, device=problem.device)[None]
                for space, rows in chosen.masks(problem.cost.shape, self.spaces).items()
            }
            student = problem.memory[_key(self, problem, seed)].student  # `search` sees to it
            fresh = _shares(importance_at(problem, student, masks, "logits"))
            worth = {
                space: value.lerp(_handed_out(fresh[space], value), self.grad_rescale)
                for space, value in _shares(worth).items()
            }
        return self._per_price(worth, problem)

    def _per_price(self, worth: Mapping[str, Tensor], problem: Problem) -> dict[str, Tensor]:
        if self.shares:
            return evenly(worth)
        price = problem.cost.of_one_unit()
        return {space: value / price[space] ** self.flops_weight for space, value in worth.items()}

    def _sized(self, problem: Problem, architecture: BertArchitecture) -> Self:
        """At the R that given widths come to."""
        if not self._all_given():
            return self
        return replace(self, target_ratio=problem.cost.exact(architecture) / problem.cost_full)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Train the student of all, unless the run has it, and cut one for each member."""
        try:
            found = _trained(members[0], problem, seed, progress)
        except FloatingPointError as error:
            yield from (SearchFailure(slot, str(error)) for slot in range(len(members)))
            return
        chosen = [member.choose(problem, seed) for member in members]
        sized = [
            member._sized(problem, architecture)
            for member, architecture in zip(members, chosen, strict=True)
        ]
        for outcome in staged_search(
            sized,
            problem,
            Chosen(chosen),
            seed=seed,
            progress=progress,
            students=[found.student] * len(members),
        ):
            if isinstance(outcome, SearchResult):
                outcome = replace(outcome, curve=[*found.curve, *outcome.curve])
            yield outcome


@dataclass(frozen=True, eq=False)
class _Trained:
    """The student of a run that was trained at many sizes."""

    student: BertForSequenceClassification
    curve: Sequence[CurvePoint]


def _key(method: ElasticSearch, problem: Problem, seed: int) -> tuple[str, str]:
    return "elastic", content_key(_ingredients(method, problem, seed))


def _trained(method: ElasticSearch, problem: Problem, seed: int, progress: Progress) -> _Trained:
    """The trained student of the run, made if it has none and read once a launch."""
    dtype = matmul_dtype(method.precision, problem.device)

    def make(folder: Path, begun: Path) -> None:
        if method.elastic.loss == "prediction+hidden":
            keep_states(problem, dtype, progress)
        along = replace(method, flops_weight=method.trained_flops_weight, grad_rescale=0.0)
        worth = along.worth(problem, seed)
        models = (
            uniform(method.shares, worth, problem.cost.shape)
            if method.shares
            else _sizes(worth, method.smallest, problem)
        )
        training = ElasticTraining(
            problem,
            Order.by_worth(problem.cost.shape, worth),
            models,
            method.elastic,
            sizes=len(method.shares) or method.sizes,
            batch_size=method.batch_size,
            seed=seed,
            dtype=dtype,
        )
        training.run(progress, begun / _CHECKPOINT)
        own = {n: w for n, w in training.state().items() if not n.startswith(EMBEDDINGS)}
        save_file({name: weight.contiguous() for name, weight in own.items()}, folder / _WEIGHTS)
        curve = training.curve()
        (folder / _CURVE).write_text(json.dumps(curve[:: math.ceil(len(curve) / _POINTS)]))

    folder = problem.kept("elastic", _ingredients(method, problem, seed), make)
    key = _key(method, problem, seed)
    if key not in problem.memory:
        student = copy.deepcopy(problem.student)
        student.load_state_dict(load_file(folder / _WEIGHTS), strict=False)  # embeddings are frozen
        curve = json.loads((folder / _CURVE).read_text())
        problem.memory[key] = _Trained(to_device(student, problem.device), curve)
    trained: _Trained = problem.memory[key]
    return trained


def _sizes(worth: Mapping[str, Tensor], smallest: float, problem: Problem) -> list[Model]:
    """The widths of models from the smallest to the whole student, of highest worth each."""
    cost, last = problem.cost, _GRID - 1
    found = []
    for number in range(_GRID):
        target = cost.full * smallest ** (1 - number / last)
        kept = units_that_fit(worth, cost, limit=target)
        masks = {space: mask.tolist() for space, mask in kept.items()}
        found.append(BertArchitecture.from_masks(cost.shape, masks).widths(cost.shape))
    return found


def uniform(shares: Sequence[float], spaces: Iterable[str], shape: BertShape) -> list[Model]:
    """The models of which each layer keeps these shares of its units of the spaces, rounded."""
    found = []
    for share in shares:
        masks = {}
        for space in spaces:
            (units,) = units_of(shape, space)
            kept = [place < round(share * units) for place in range(units)]
            masks[space] = [kept] * shape.layers
        found.append(BertArchitecture.from_masks(shape, masks).widths(shape))
    return found


def _ingredients(method: ElasticSearch, problem: Problem, seed: int) -> dict[str, object]:
    """All that decides the trained student beside the problem."""
    shared = ("spaces", "batch_size", "sizes", "smallest", "trained_flops_weight", "shares")
    return {
        **{name: getattr(method, name) for name in shared},
        "elastic": asdict(method.elastic),
        "precision": str(matmul_dtype(method.precision, problem.device)),
        "seed": seed,
    }


def _shares(worth: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the worth of all units together."""
    total = sum(float(value.sum()) for value in worth.values())
    return {space: value / total for space, value in worth.items()}


def _handed_out(fresh: Tensor, order: Tensor) -> Tensor:
    """The values of each layer, (layers, units), highest first in the order of another worth."""
    return fresh.sort(dim=-1, descending=True).values.gather(-1, places(order))

"""Cross distillation (Bai et al. 2020): prune with a handful of rows, no label, no training."""

# Units go by what the answer loses without them once the weights of the others have made up for it.
# Then, layer by layer, the weights that read the units of a block are those of least squares
# between what the block gives and what the unpruned one gives (`side_by_side.py`). A block is wrong
# for two reasons: for the units that it lost, and for the blocks before it, which feed it what they
# should not. Cross distillation (CD) weighs the two up: its loss is mu of the squared error on what
# enters the block of the unpruned model, and 1 - mu of that on what enters the pruned one's. Soft
# cross distillation (SCD) mixes inputs instead of losses.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertLayer

from objectives.errors import PositiveFloat, PositiveInt, Share
from objectives.problem import Problem
from objectives.pruning.importance import gradients_behind, per_cost
from objectives.pruning.one_shot import OneShot
from objectives.pruning.reconstruction import held, solved, stepped
from objectives.pruning.side_by_side import RECONSTRUCTION, Pair, side_by_side
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier
from objectives.text.data import Batch
from objectives.training.stages import Stage

# What a unit is worth while the weights of the others make up for it: optimal brain surgeon.
#
# A block adds W x to the hidden states. Closing the input channels S of W raises the squared
# error of that by least if the weights that stay change by -W_S (A^-1_SS)^-1 A^-1_S:, A being the
# second moment of x; the rise is then
#
#     tr(R W_S (A^-1_SS)^-1 W_S' R')
#
# and the inverse of what is left of A is A^-1 - A^-1_:S (A^-1_SS)^-1 A^-1_S: (Hassibi & Stork
# 1992; in groups, one after another, as ZipLM does, Kurtic et al. 2023). A unit is worth the rise
# at its turn, so that of two that do the same work the first to leave is worth little and the
# second much.
#
# R'R is what a change of the output matters to the answer: the second moment of the gradient of
# the logits with respect to it (squares along axes in turn, as in `importance.py`). ZipLM has
# none, and compares layers by their relative errors; with it a rise is one of the squared error
# of the logits, as far as tokens count for themselves, in all layers alike.

_AT_ONCE = 0.05
"""Share of the units that are left which leave together, one at least. That raised the error of
half of an FFN by 0.07% beside one by one, in a tenth of the seconds."""
_HOLD = 0.01
"""Damping: share of the mean square of a gradient dimension that is added, as rows are few."""


def leaving(weight: Tensor, second: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Units that leave, and the rise of the squared error of `weight` x, until none is left."""
    # `weight` is R W, (E, width); `second` A, (width, width), positive definite; a unit has `size`
    # channels side by side. Those leave next that alone raise the error least.
    inverse, units = torch.linalg.inv(second), torch.arange(weight.shape[1] // size)
    units = units.to(weight.device)
    while len(units):
        blocks = inverse.view(len(units), size, len(units), size).diagonal(0, 0, 2)
        columns = weight.view(-1, len(units), size).permute(1, 2, 0)
        ratios = torch.linalg.solve(blocks.permute(2, 0, 1), columns @ columns.mT)
        alone = ratios.diagonal(0, 1, 2).sum(-1)
        stay = torch.ones_like(units, dtype=torch.bool)
        stay[alone.argsort()[: max(1, int(_AT_ONCE * len(units)))]] = False
        left = stay.repeat_interleave(size)
        inner, given = inverse[~left][:, ~left], weight[:, ~left]
        yield units[~stay], (torch.linalg.solve(inner, given.T) * given.T).sum()
        spread = torch.linalg.solve(inner, inverse[~left][:, left])
        weight = weight[:, left] - given @ spread
        inverse = inverse[left][:, left] - inverse[left][:, ~left] @ spread
        units = units[stay]


def rises(weight: Tensor, second: Tensor, size: int) -> Tensor:
    """Rise of the error as each unit leaves, (units,): never less than at the one before it."""
    rise_of_unit = weight.new_zeros(weight.shape[1] // size)
    highest = weight.new_zeros(())
    for units, rise in leaving(weight, second, size):
        highest = highest.maximum(rise / len(units))
        rise_of_unit[units] = highest
    return rise_of_unit


def curvature(
    model: BertForSequenceClassification, batches: Sequence[Batch]
) -> dict[str, list[Tensor]]:
    """R'R, (E, E) float64 a layer: mean g g', g the gradient of the logits by what a block adds."""
    # In the last layer the mean is over first tokens, which alone have a gradient.
    layers = cast("Sequence[BertLayer]", model.bert.encoder.layer)
    outputs = {
        (space, number): dense
        for number, layer in enumerate(layers)
        for space, dense in (("heads", layer.attention.output.dense), ("ffn", layer.output.dense))
    }
    total: dict[tuple[str, int], Tensor] = {}
    tokens = dict.fromkeys(outputs, 0)
    for batch, _, gradients in gradients_behind([*outputs.values()], model, batches):
        for key, gradient in zip(outputs, gradients, strict=True):
            read = batch.attention_mask.clone()
            read[:, 1:] &= key[1] < len(layers) - 1
            of_tokens = gradient[read]
            total[key] = total.get(key, 0) + (of_tokens.T @ of_tokens).double()
            tokens[key] += len(of_tokens)
    return {s: [total[s, n] / tokens[s, n] for n in range(len(layers))] for s in ("heads", "ffn")}


def surgeon_scores(problem: Problem, batches: Sequence[Batch], damping: float) -> dict[str, Tensor]:
    """The score of each head and neuron of the student: of each space (layers, units)."""
    student, shape = problem.student, problem.shape
    matters = curvature(student, batches)
    sizes = {"heads": shape.head_dim, "ffn": 1}
    scores: dict[str, list[Tensor]] = {space: [] for space in sizes}
    for fit in side_by_side(student, student, batches, [RECONSTRUCTION]):
        root = torch.linalg.cholesky(held(matters[fit.space][fit.layer], _HOLD)).T
        weight = root @ fit.weight.double()
        scores[fit.space].append(rises(weight, held(fit.second, damping), sizes[fit.space]))
    return {space: torch.stack(rows) for space, rows in scores.items()}


@dataclass(frozen=True, kw_only=True)
class CrossDistillation(OneShot):
    """Cut what the others can make up for, then solve for their weights, layer by layer."""

    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    stages: tuple[Stage, ...] = ()
    """None, as a few rows train nothing. With many, distillation goes on from what was solved."""
    rows: PositiveInt = 1024
    """Rows of train, drawn with the seed; all, if there are fewer. >= 1. The hidden states of both
    models on their tokens stay in memory, 8 E bytes each. Nothing else is read."""
    mixes: Literal["inputs", "losses"] = "inputs"
    """Quantity that is mixed between the two paths: "inputs" is SCD, "losses" CD."""
    mu: Share = 0.6
    """Share of the loss on the unpruned model's path, with mixed losses. In [0, 1]."""
    alpha: Share = 0.75
    """Share of the unpruned model's path in what its own weights get, if inputs mix. In [0, 1]."""
    beta: Share = 0.75
    """Share of the pruned model's path in what its weights get, likewise; where both are 1 each
    model goes its own way, which is plain reconstruction. In [0, 1]."""
    damping: PositiveFloat = 0.1
    """Hold at the unpruned weights, in mean squares of what enters one; few rows want more. > 0."""
    prox: Literal["closed", "hard", "soft"] = "closed"
    """Which units of a block stay: those that rank highest, whose weights have a closed form; or
    those that proximal steps leave, in minutes, not seconds: "hard", of the largest weights on a
    falling schedule, as in the paper's code; "soft", by the group lasso of its text."""

    def inactive(self) -> Mapping[str, str]:
        losses = self.mixes == "losses"
        names = ("alpha", "beta") if losses else ("mu",)
        reason = f"it only acts with mixes='{'inputs' if losses else 'losses'}'"
        return {**super().inactive(), **dict.fromkeys(names, reason)}

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """How far the answer moves without a unit, per cost."""
        scores = problem.once(
            ("surgeon scores", self.rows, self.damping, seed),
            lambda: surgeon_scores(problem, self._batches(problem, seed), self.damping),
        )
        return per_cost({space: scores[space] for space in self.spaces}, problem.budget.cost)

    def _found(self, problem: Problem, seed: int) -> tuple[BertArchitecture, Classifier]:
        """The units inside the budget; with `prox` as many of each block as the steps leave."""
        if self.prox == "closed":
            return super()._found(problem, seed)
        chosen, batches = self.choose(problem, seed), self._batches(problem, seed)
        return stepped(problem, chosen, batches, self.pairs, self.damping, self.prox)

    @property
    def pairs(self) -> Sequence[Pair]:
        """The pairs that the loss compares."""
        if self.mixes == "inputs":
            return [Pair(self.alpha, self.beta)]
        return [Pair(1.0, 0.0, self.mu), Pair(0.0, 1.0, 1 - self.mu)]

    def student(
        self, problem: Problem, architecture: BertArchitecture, seed: int
    ) -> BertForSequenceClassification:
        return solved(problem, architecture, self._batches(problem, seed), self.pairs, self.damping)

    def _batches(self, problem: Problem, seed: int) -> list[Batch]:
        train, generator = problem.train, np.random.default_rng(seed)
        drawn = train.drawn(self.rows, generator, train.rows_with_gradients)
        return [train.batch(rows, problem.device) for rows in drawn]

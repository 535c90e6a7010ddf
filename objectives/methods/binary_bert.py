"""BinaryBERT (Bai et al. 2021): weights of one bit, from a ternary model of half the width."""

# Half of the student (the units that move the answer most) is trained in ternary weights. Each of
# these is then split into two binary ones that add up to it, so that the binary model begins at the
# loss of the ternary one, and is trained further. A weight that is split takes two bits a number
# and two scales a row: as many bytes as one bit a number in the whole student.

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from objectives.errors import Share, UserError
from objectives.measures.bits import bytes_of
from objectives.measures.evaluate import nearness
from objectives.problem import Problem
from objectives.pruning.one_shot import OneShot
from objectives.pruning.staged_method import Bits
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import codes_of, quantised
from objectives.training.stages import RECOVER, Stage


def best_within(gains: Sequence[float], costs: Sequence[int], budget: float) -> tuple[int, ...]:
    """Ascending indices of the items of most gain that the budget pays: 0/1 knapsack, exact."""
    # Dynamic programming over whole costs >= 0: of all choices among the first few things only
    # those are kept that no cheaper choice equals, at most budget + 1.
    front: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for thing, (gain, cost) in enumerate(zip(gains, costs, strict=True)):
        longer = [(p + cost, g + gain, (*taken, thing)) for p, g, taken in front]
        both = [*front, *(choice for choice in longer if choice[0] <= budget)]
        front = []
        for choice in sorted(both, key=lambda one: (one[0], -one[1])):
            if not front or choice[1] > front[-1][1]:
                front.append(choice)
    return front[-1][2]


# Ternary weight splitting (BinaryBERT, Bai et al. 2021): a ternary weight as two binary ones.
#
# A row w of a weight becomes the rows w1 + w2 = w, whose binary forms add up to the ternary form
# of w. With n numbers, I those that stay, J the positive and K the other ones that become 0, S
# the sums of |w| over these:
#
#     w1 = a w        on I,   b + w   on J,    b       on K
#     w2 = (1 - a) w  on I,   -b      on J,    -b + w  on K
#
#     a = (S_I + S_K - S_J) / (2 S_I)        b = (n S_I / |I| - sum |w|) / (2 (|J| + |K|))
#
# In print S_J and S_K stand in each other's place in `a`: then the two scales differ, and the
# zeros of the ternary form are lost. a lies in (0, 1) unless a row is so skewed that |S_J - S_K|
# > S_I. There the two forms change places on every second of J and K, the largest first: what
# takes the place of S_J - S_K is then no larger than the largest of them, and that is less than
# S_I.
#
# A model in halves, for training, has twice the rows in each of these weights, those of w1 first.
# It computes nothing before it is quantised.


def split(weight: Tensor) -> Tensor:
    """Split a weight (rows, columns) into halves, one below the other: (2 rows, columns)."""
    exact = weight.double()
    codes, scale = codes_of(exact, 2)
    sizes, stays = exact.abs(), codes != 0
    zeros = (~stays).sum(-1, keepdim=True)
    total, staying = sizes.sum(-1, keepdim=True), (sizes * stays).sum(-1, keepdim=True)
    b = (exact.shape[-1] * scale - total).clamp_min(0) / (2 * zeros).clamp_min(1)
    upper, lower = b + exact.clamp_min(0), exact.clamp_max(0) - b

    skewed = (exact * ~stays).sum(-1, keepdim=True).abs() >= staying
    ranks = (sizes * ~stays).argsort(-1, descending=True).argsort(-1)
    in_turn = torch.where(ranks % 2 == 0, 1.0, -1.0) * torch.where(exact > 0, 1.0, -1.0)
    signs = torch.where(skewed, in_turn, 1.0)  # where 1, `upper` is w1's

    surplus = (exact * signs * ~stays).sum(-1, keepdim=True)
    a = torch.where(staying > 0, (staying - surplus) / (2 * staying), 0.5)
    first = torch.where(stays, a * exact, torch.where(signs > 0, upper, lower))
    second = torch.where(stays, (1 - a) * exact, torch.where(signs > 0, lower, upper))
    return torch.cat([first, second]).to(weight.dtype)


@torch.no_grad()
def in_halves(
    model: PrunedBertForSequenceClassification, architecture: BertArchitecture
) -> PrunedBertForSequenceClassification:
    """Copy with split weights where the architecture has halves."""
    model = copy.deepcopy(model)
    layers = [number for number, units in enumerate(architecture.layers) if units.halves]
    names = [f"bert.encoder.layer.{n}.{linear.name}" for n in layers for linear in LINEARS]
    if architecture.pooler_halves:
        names.append("bert.pooler.dense")
    for name in names:
        module = model.get_submodule(name)
        assert isinstance(module, nn.Linear)
        if module.weight.numel():
            module.weight = nn.Parameter(split(module.weight))
    return model


_TERNARY = replace(RECOVER, name="ternary", quantised=True)


@dataclass(frozen=True, kw_only=True)
class BinaryBert(OneShot):
    """Half of the student in ternary weights, then each of these as two binary ones.

    R is measured while the weights are ternary."""

    per_slot: ClassVar[frozenset[str]] = OneShot.per_slot | {"split"}
    weight_bits: ClassVar[Bits] = 2  # type: ignore[misc]
    cut_together: ClassVar[bool] = False

    input_bits: Bits = 8
    """Bits of the inputs of weights: 32 (not quantised), 8 or 4."""
    embedding_bits: int = 2
    """Bits of the embeddings of words and positions, which do not learn: 32, 8, 4, 2 or 1."""
    stages: tuple[Stage, ...] = (_TERNARY, replace(_TERNARY, name="binary"))
    """Stages of the weights, ternary first: 3 epochs each, as those of TernaryBert."""
    first_binary: str = "binary"
    """The name of the stage before which the weights are split."""
    split: Share = 1.0
    """Share of the bytes that splitting all layers adds which may be spent: the layers are split
    that gain most for it, the others have one binary matrix. In [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [stage.name for stage in self.stages]
        if self.first_binary not in names:
            raise UserError(
                f"BinaryBert.first_binary is '{self.first_binary}', which is not one of its "
                f"stages ({', '.join(names)}); name the stage before which weights are split"
            )
        for stage in self.stages[names.index(self.first_binary) :]:
            if stage.start == "student" or not stage.quantised:
                raise UserError(
                    f"stage '{stage.name}': it comes after the weights are split, so it "
                    "needs quantised=True and start='previous'"
                )

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """Set ternary weights, or keep the bits that the units have already."""
        return architecture if architecture.has_bits else super().in_bits(architecture)

    def entering(
        self,
        stage: Stage,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> tuple[PrunedBertForSequenceClassification, BertArchitecture]:
        """In binary weights, halves of ternary ones, from the first binary stage on."""
        if stage.name == self.first_binary:
            units = self._halved(units, self._chosen(model, units, problem))
            model = in_halves(model, units)
        return model, units

    def _halved(self, units: BertArchitecture, split: Collection[int]) -> BertArchitecture:
        """In binary weights, those of some layers in halves."""
        binary = self._with_weight_bits(units, 1)
        layers = [replace(u, halves=2 if n in split else None) for n, u in enumerate(binary.layers)]
        return replace(binary, layers=tuple(layers))

    def _chosen(
        self, model: PrunedBertForSequenceClassification, units: BertArchitecture, problem: Problem
    ) -> Collection[int]:
        """The layers to split, after the pooler's halves and the file's header are paid."""
        layers = range(len(units.layers))
        if self.split == 1:
            return layers
        taught = problem.alpha_logits.cpu()

        def measured(split: Collection[int]) -> tuple[float, int]:
            """Nearness to the teacher with these layers split, and bytes of the model."""
            halved = self._halved(units, split)
            rounded = quantised(in_halves(model, halved), halved)
            return nearness(rounded, problem.alpha, taught, "cpu"), bytes_of(rounded.state_dict())

        (near, size), (_, least) = measured(layers), measured(())
        without = [measured(set(layers) - {layer}) for layer in layers]
        costs = [size - smaller for _, smaller in without]
        budget = self.split * (size - least) - (size - least - sum(costs))
        return best_within([near - further for further, _ in without], costs, budget)

"""Ternary weight splitting (BinaryBERT, Bai et al. 2021): a ternary weight as two binary ones.

A row w of a weight becomes the rows w1 + w2 = w, whose binary forms add up to the ternary form of
w. With n numbers, I those that stay, J the positive and K the other ones that become 0, S the sums
of |w| over these:

    w1 = a w        on I,   b + w   on J,    b       on K
    w2 = (1 - a) w  on I,   -b      on J,    -b + w  on K

    a = (S_I + S_K - S_J) / (2 S_I)        b = (n S_I / |I| - sum |w|) / (2 (|J| + |K|))

In print S_J and S_K stand in each other's place in `a`: then the two scales differ, and the zeros
of the ternary form are lost. a lies in (0, 1) unless a row is so skewed that |S_J - S_K| > S_I.
There the two forms change places on every second of J and K, the largest first: what takes the
place of S_J - S_K is then no larger than the largest of them, and that is less than S_I.

A model in halves, for training, has twice the rows in each of these weights, those of w1 first. It
computes nothing before it is quantised.
"""

import copy

import torch
from torch import Tensor, nn

from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import codes_of

HALVES = 2


def split(weight: Tensor) -> Tensor:
    """Both halves of a weight (rows, columns), one below the other: (2 rows, columns)."""
    exact = weight.double()
    codes, scale = codes_of(exact, 2)
    sizes, stays = exact.abs(), codes != 0
    zeros = (~stays).sum(-1, keepdim=True)
    total, kept = sizes.sum(-1, keepdim=True), (sizes * stays).sum(-1, keepdim=True)
    b = (exact.shape[-1] * scale - total).clamp_min(0) / (2 * zeros).clamp_min(1)
    upper, lower = b + exact.clamp_min(0), exact.clamp_max(0) - b

    signs = torch.ones_like(exact)  # where 1, `upper` is w1's
    skewed = (exact * ~stays).sum(-1, keepdim=True).abs() >= kept
    places = (sizes * ~stays).argsort(-1, descending=True).argsort(-1)
    in_turn = torch.where(places % 2 == 0, 1.0, -1.0) * torch.where(exact > 0, 1.0, -1.0)
    signs = torch.where(skewed, in_turn, signs)

    surplus = (exact * signs * ~stays).sum(-1, keepdim=True)
    a = torch.where(kept > 0, (kept - surplus) / (2 * kept), 0.5)
    first = torch.where(stays, a * exact, torch.where(signs > 0, upper, lower))
    second = torch.where(stays, (1 - a) * exact, torch.where(signs > 0, lower, upper))
    return torch.cat([first, second]).to(weight.dtype)


@torch.no_grad()
def in_halves(
    model: PrunedBertForSequenceClassification, architecture: BertArchitecture
) -> PrunedBertForSequenceClassification:
    """A copy whose weights are split where the architecture says that they have halves."""
    model = copy.deepcopy(model)
    names = [
        f"bert.encoder.layer.{number}.{linear.name}"
        for number, units in enumerate(architecture.layers)
        for linear in LINEARS
        if units.halves
    ]
    if architecture.pooler_halves:
        names.append("bert.pooler.dense")
    for name in names:
        module = model.get_submodule(name)
        assert isinstance(module, nn.Linear)
        if module.weight.numel():
            module.weight = nn.Parameter(split(module.weight))
    return model

"""What the kept units of a block give back is scaled so that the block's output stays the same.

Block after block, attention and FFN: the factors of the kept units are those with which the sum
before the LayerNorm comes nearest to that of the unpruned model on the same text (Kwon et al. 2022,
section 4.3), by linear least squares. They go into the weights of the output projection. Of the
last layer's output the classifier reads the first position alone, so that this one counts there.

Unlike the paper's code: every block is fitted, heads without an intercept, the damping is that of
the equations themselves, and a block whose factors grow too large is left out, not all after it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.bert.modeling_bert import BertLayer, BertOutput, BertSelfOutput

from objectives.bert.architecture import BertArchitecture
from objectives.problem import Problem
from objectives.text.data import Batch

_BATCH_SIZE = 32
_DAMPING = 1.0
"""Of the distance from factors of 1, beside the squared error summed over tokens and dimensions."""
_LARGEST = 10.0
"""A block in which a factor goes beyond that is left as it is."""


@torch.no_grad()
def reconstructed(
    problem: Problem, architecture: BertArchitecture
) -> BertForSequenceClassification:
    """A copy of the student: output projections 0 at closed units, scaled at the others.

    The alpha split is the text. It goes through both models side by side, block by block, and its
    hidden states stay in memory meanwhile: 8 E bytes a token. For architectures that cut heads and
    FFN neurons alone.
    """
    whole, shape = problem.student, problem.cost.shape
    student = copy.deepcopy(whole)
    masks = architecture.masks(shape, ("heads", "ffn"))
    batches = problem.alpha.in_order(_BATCH_SIZE, problem.device)
    passes = [_Pass.begin(whole, batch) for batch in batches]
    for number in range(shape.layers):
        for space in ("heads", "ffn"):
            wanted, own = (
                _Block(cast("BertLayer", model.bert.encoder.layer[number]), space)
                for model in (whole, student)
            )
            kept = torch.tensor(masks[space][number], device=problem.device)
            _go_through(wanted, own, kept, passes, first_only=number == shape.layers - 1)
    return student


@dataclass(frozen=True)
class _Block:
    """Attention ("heads") or FFN of a layer."""

    layer: BertLayer
    space: str

    def units(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """What the output projection reads, (B, S, width)."""
        if self.space == "heads":
            context: Tensor = self.layer.attention.self(hidden, mask)[0]
            return context
        fed: Tensor = self.layer.intermediate(hidden)
        return fed

    @property
    def output(self) -> BertSelfOutput | BertOutput:
        """Projects that, adds the residual, norms."""
        return self.layer.attention.output if self.space == "heads" else self.layer.output


@dataclass
class _Pass:
    """A batch on its way through both models."""

    tokens: Tensor
    """(B, S) bool; False is padding."""
    mask: Tensor | None
    """The same as attention takes it."""
    wanted: Tensor
    """(B, S, E): what enters the next block of the unpruned model."""
    own: Tensor
    """The same of the student."""

    @classmethod
    def begin(cls, model: BertForSequenceClassification, batch: Batch) -> _Pass:
        """The embeddings, which both models share."""
        hidden = model.bert.embeddings(batch.input_ids, batch.token_type_ids)
        mask = create_bidirectional_mask(model.config, hidden, batch.attention_mask)
        return cls(batch.attention_mask, cast("Tensor | None", mask), hidden, hidden)


def _go_through(
    whole: _Block, student: _Block, kept: Tensor, passes: Sequence[_Pass], *, first_only: bool
) -> None:
    """Close the units of the student's block that are not `kept`, scale the others, and advance.

    The factors are fitted on all tokens, or on the first of each sequence. The student's units are
    computed a second time to advance: to keep them would take four times the memory of its hidden
    states.
    """
    weight, wanted_weight = student.output.dense.weight, whole.output.dense.weight
    columns = kept.repeat_interleave(weight.shape[1] // len(kept))
    weight.mul_(columns)
    left = weight[:, columns]
    second = torch.zeros(left.shape[1], left.shape[1], dtype=torch.float64, device=left.device)
    towards = torch.zeros(left.shape[1], dtype=torch.float64, device=left.device)
    for at in passes:
        wanted_units, units = whole.units(at.wanted, at.mask), student.units(at.own, at.mask)
        read = at.tokens.clone()
        read[:, 1:] &= not first_only
        wanted, own = wanted_units[read], units[read][:, columns]
        residual = (at.wanted - at.own)[read]
        lacks = wanted @ wanted_weight.T - own @ left.T + residual
        towards += ((lacks @ left) * own).double().sum(0)
        second += (own.T @ own).double()
        at.wanted = whole.output(wanted_units, at.wanted)
    if kept.any():
        factors = _factors(second * (left.T @ left).double(), towards, int(kept.sum()))
        weight[:, columns] *= factors.repeat_interleave(left.shape[1] // len(factors))
    for at in passes:
        at.own = student.output(student.units(at.own, at.mask), at.own)


def _factors(products: Tensor, towards: Tensor, units: int) -> Tensor:
    """The factor of each kept unit of a block, (units,) float64.

    With C the contributions of the units to the sum, one column each, and e what the sum lacks
    while all factors are 1, their change is (C'C + damping)^-1 C'e. `products` is C'C and `towards`
    C'e, with a row for each dimension of a unit.
    """
    size = len(towards) // units
    gram = products.view(units, size, units, size).sum((1, 3))
    error = towards.view(units, size).sum(1)
    damping = _DAMPING * torch.eye(units, dtype=gram.dtype, device=gram.device)
    factors = 1 + torch.linalg.solve(gram + damping, error)
    return factors if factors.abs().max() <= _LARGEST else torch.ones_like(factors)

"""What the kept units of a block give back is scaled so that the block's output stays the same.

Block after block, attention and FFN: the factors of the kept units are those with which the sum
before the LayerNorm comes nearest to that of the unpruned model on the same text (Kwon et al. 2022,
section 4.3), by linear least squares. They go into the weights of the output projection.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from objectives.architecture import Architecture
from objectives.data import Split
from objectives.problem import Problem

_BATCH_SIZE = 32
_DAMPING = 1.0
"""Of the distance from factors of 1, beside the squared error summed over tokens and dimensions."""
_LARGEST = 10.0
"""A block in which a factor goes beyond that is left as it is, as Kwon et al. do."""


@torch.no_grad()
def reconstructed(problem: Problem, architecture: Architecture) -> BertForSequenceClassification:
    """A copy of the student: output projections 0 at closed units, scaled at the others.

    The alpha split is the text. For architectures that cut heads and FFN neurons alone.
    """
    whole, shape = problem.student, problem.cost.shape
    student = copy.deepcopy(whole)
    masks = architecture.masks(shape, ("heads", "ffn"))
    for layer in range(shape.layers):
        for space, block in (("heads", "attention.output"), ("ffn", "output")):
            path = f"bert.encoder.layer.{layer}.{block}"
            kept = torch.tensor(masks[space][layer], device=problem.device)
            columns = shape.head_dim if space == "heads" else 1
            weight = student.get_submodule(path).get_parameter("dense.weight")
            weight.mul_(kept.repeat_interleave(columns))
            if kept.any():
                factors = _factors(whole, student, path, kept, problem.alpha, problem.device)
                weight.mul_(factors.repeat_interleave(columns))
    return student


def _factors(
    whole: nn.Module, student: nn.Module, path: str, kept: Tensor, split: Split, device: str
) -> Tensor:
    """The factor of each unit of a block, (units,) float64: 1 at closed ones.

    With C the contributions of the units to the sum, one column each, and e what the sum lacks
    while all factors are 1, their change is (C'C + damping)^-1 C'e.
    """
    weight = student.get_submodule(path).get_parameter("dense.weight")
    whole_weight = whole.get_submodule(path).get_parameter("dense.weight")
    units, width = len(kept), weight.shape[1]
    second = torch.zeros(width, width, dtype=torch.float64, device=device)
    towards = torch.zeros(width, dtype=torch.float64, device=device)
    for (wanted, wanted_residual), (own, residual) in zip(
        _inputs(whole, path, split, device), _inputs(student, path, split, device), strict=True
    ):
        lacks = wanted @ whole_weight.T + wanted_residual - own @ weight.T - residual
        towards += ((lacks @ weight) * own).double().sum(0)
        second += (own.T @ own).double()
    products = second * (weight.T @ weight).double()
    """C'C, a row and a column for each dimension of a unit."""
    gram = products.view(units, width // units, units, width // units).sum((1, 3))
    error = towards.view(units, -1).sum(1)

    factors = torch.ones(units, dtype=torch.float64, device=device)
    chosen = kept.nonzero().flatten()
    damping = _DAMPING * torch.eye(len(chosen), dtype=torch.float64, device=device)
    solved = 1 + torch.linalg.solve(gram[chosen][:, chosen] + damping, error[chosen])
    if solved.abs().max() <= _LARGEST:
        factors[chosen] = solved
    return factors


class _Reached(Exception):  # noqa: N818 (no error: it ends a pass early)
    """The forward pass has come to the block; no more of it is needed."""

    def __init__(self, units: Tensor, residual: Tensor):
        super().__init__()
        self.units, self.residual = units, residual


def _inputs(
    model: nn.Module, path: str, split: Split, device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """What enters the output projection of a block, (tokens, width), and its residual, (tokens,
    hidden), of the tokens of each batch; padding is left out."""

    def stop(_: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        raise _Reached(*inputs)

    hook = model.get_submodule(path).register_forward_pre_hook(stop)
    try:
        for batch in split.in_order(_BATCH_SIZE, device):
            try:
                model(
                    input_ids=batch.input_ids,
                    attention_mask=batch.attention_mask,
                    token_type_ids=batch.token_type_ids,
                )
            except _Reached as at:
                yield at.units[batch.attention_mask], at.residual[batch.attention_mask]
    finally:
        hook.remove()

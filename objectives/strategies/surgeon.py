"""What a unit is worth while the weights of the others make up for it: optimal brain surgeon.

A block adds W x to the hidden states. Closing the input channels S of W raises the squared error of
that by least if the weights that stay change by -W_S (A^-1_SS)^-1 A^-1_S:, A being the second
moment of x; the rise is then

    tr(R W_S (A^-1_SS)^-1 W_S' R')

and the inverse of what is left of A is A^-1 - A^-1_:S (A^-1_SS)^-1 A^-1_S: (Hassibi & Stork 1992;
in groups, one after another, as ZipLM does, Kurtic et al. 2023). A unit is worth the rise at its
turn, so that of two that do the same work the first to leave is worth little and the second much.

R'R is what a change of the output matters to the answer: the second moment of the gradient of the
logits with respect to it (squares along axes in turn, as in `importance.py`). ZipLM has none, and
compares layers by their relative errors; with it a rise is one of the squared error of the logits,
as far as tokens count for themselves, in all layers alike.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertLayer

from objectives.compression.reconstruction import held
from objectives.compression.side_by_side import RECONSTRUCTION, side_by_side
from objectives.problem import Problem
from objectives.strategies.importance import gradients_behind
from objectives.text.data import Batch

_AT_ONCE = 0.05
"""Share of the units that are left which leave together, one at least. That raised the error of
half of an FFN by 0.07% beside one by one, in a tenth of the seconds."""
_HOLD = 0.01
"""Of the mean square of a gradient along one dimension, added to all: as A, R'R has few rows."""


def leaving(weight: Tensor, second: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Units that leave, and by how much the squared error of `weight` x rises, until none is left.

    `weight` is R W, (E, width); `second` A, (width, width), positive definite; a unit has `size`
    channels side by side. Those leave next that alone raise the error least.
    """
    inverse, units = torch.linalg.inv(second), torch.arange(weight.shape[1] // size)
    units = units.to(weight.device)
    while len(units):
        blocks = inverse.view(len(units), size, len(units), size).diagonal(0, 0, 2)
        own = weight.view(-1, len(units), size).permute(1, 2, 0)
        ratios = torch.linalg.solve(blocks.permute(2, 0, 1), own @ own.mT)
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
    """By how much the error rises as each unit leaves, (units,): no less than as one before it did,
    so that units leave a budget in this order."""
    found = weight.new_zeros(weight.shape[1] // size)
    highest = weight.new_zeros(())
    for units, rise in leaving(weight, second, size):
        highest = highest.maximum(rise / len(units))
        found[units] = highest
    return found


def curvature(
    model: BertForSequenceClassification, batches: Sequence[Batch]
) -> dict[str, list[Tensor]]:
    """R'R: the mean over tokens of g g', g the gradient of the logits with respect to what a block
    adds: of heads and ffn, of each layer (E, E) float64.

    In the last layer the mean is over first tokens, which alone have a gradient.
    """
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
    return {
        space: [total[space, number] / tokens[space, number] for number in range(len(layers))]
        for space in ("heads", "ffn")
    }


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

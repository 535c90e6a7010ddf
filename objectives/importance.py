"""What a unit is worth before any search: Fisher information of its mask (Kwon et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertForSequenceClassification

from objectives.architecture import BertShape, units_of
from objectives.data import Split
from objectives.population import Population

_BATCH_SIZE = 32


def fisher_importance(
    model: BertForSequenceClassification,
    split: Split,
    shape: BertShape,
    spaces: tuple[str, ...],
    device: str,
) -> dict[str, Tensor]:
    """Mean over the rows of (d loss / d mask)^2 at open masks: (layers, *units_of) of each space.

    It is the diagonal of the empirical Fisher information of the masks, so half of it estimates how
    much the cross-entropy rises when the unit closes. Gradients are taken for each sequence, not
    for the mean of a batch, in which they would cancel.
    """
    population = Population.of([model])
    for weight in population.weights.values():
        weight.requires_grad_(False)
    total = {
        space: torch.zeros(shape.layers, *units_of(shape, space), device=device) for space in spaces
    }
    for batch in split.in_order(_BATCH_SIZE, device):
        masks = {
            space: torch.ones(1, len(batch.rows), *value.shape, device=device, requires_grad=True)
            for space, value in total.items()
        }
        logits_BC = population.logits(batch, masks)[0]
        loss = functional.cross_entropy(logits_BC, batch.labels, reduction="sum")
        gradients = torch.autograd.grad(loss, list(masks.values()))
        for value, gradient in zip(total.values(), gradients, strict=True):
            value += gradient[0].square().sum(0)
    return {space: value / len(split) for space, value in total.items()}

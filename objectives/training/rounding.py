"""Rounding as part of the weights: students that learn with the few bits in which they are kept.

Forward it is `bert.quantising` and `bert.packing`; backward it is not there (straight through:
Bengio et al. 2013). Shapes as in `population`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from objectives.students.bert import packing
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.quantising import rounded

_POOLER = "bert.pooler.dense.weight"


def rounded_weights(
    weights: dict[str, Tensor],
    architectures: Sequence[BertArchitecture],
    layers: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The weights, by BERT's names, with the bits that the students' architectures say: those of
    these layers (by default all) and of the pooler; without architectures as they are. Students in
    halves (see `bert.splitting`) are split alike."""
    if not any(architecture.has_bits for architecture in architectures):
        return weights
    found = dict(weights)
    for layer in range(len(architectures[0].layers)) if layers is None else layers:
        bits = [architecture.layers[layer].weight_bits for architecture in architectures]
        for linear in LINEARS:
            name = f"bert.encoder.layer.{layer}.{linear.name}.weight"
            found[name] = _rounded(weights[name], bits, architectures[0].layers[layer].halves)
    pooler = [architecture.pooler_bits for architecture in architectures]
    halves = architectures[0].pooler_halves
    return {**found, _POOLER: _rounded(weights[_POOLER], pooler, halves)}


def rounded_inputs(
    inputs_KTI: Tensor, architectures: Sequence[BertArchitecture], layer: int
) -> Tensor:
    """What enters the weights of a layer, rounded for those students whose architectures say so."""
    bits = [architecture.layers[layer].input_bits for architecture in architectures]
    return _through(packing.rounded_inputs, inputs_KTI, bits) if any(bits) else inputs_KTI


def _rounded(weight_KOI: Tensor, bits: Sequence[int | None], halves: int | None) -> Tensor:
    if not any(bits) or not weight_KOI.numel():
        return weight_KOI
    found = _through(rounded, weight_KOI, bits)
    return found if halves is None else found.unflatten(1, (halves, -1)).sum(1)


def _through(
    rounding: Callable[[Tensor, int], Tensor], exact: Tensor, bits: Sequence[int | None]
) -> Tensor:
    """The rounded numbers of each student, with the gradient of the exact ones."""
    return torch.stack(
        [
            own if few is None else own + (rounding(own.detach(), few) - own).detach()
            for own, few in zip(exact.unbind(), bits, strict=True)
        ]
    )

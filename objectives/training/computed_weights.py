"""Weights of the forward pass: masked, and rounded to few bits.

Rounding is `bert.quantising` and `bert.packing` forward, and absent backward (straight through:
Bengio et al. 2013). Masks touch weights, not tokens, as that costs less. Shapes: `population`."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from objectives.students.bert import packing
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.linears import AXES, LINEARS
from objectives.students.bert.quantising import rounded

_POOLER = "bert.pooler.dense.weight"


def unit_parts(
    weights: Mapping[str, Tensor], layer: int, axes: Sequence[str], units: int
) -> list[Tensor]:
    """Views (K, units, ., .) of a layer's weights that make or read the units along these axes."""
    return [
        weights[f"bert.encoder.layer.{layer}.{linear.name}.weight"]
        .detach()
        .unflatten(dim, (units, -1))
        .movedim(dim, 1)
        for linear in LINEARS
        for dim, axis in ((1, linear.outputs), (2, linear.inputs))
        if axis in axes
    ]


def masked_weights(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Multiply masks, space to (K, layers, *units_of), into the weights; not those of layers."""
    masked = dict(weights)
    for space, of_layers in masks.items():
        if space == "layers":
            continue
        for layer, mask in enumerate(of_layers.unbind(1)):
            _mask(masked, f"bert.encoder.layer.{layer}.", space, mask)
    return masked


def _mask(weights: dict[str, Tensor], layer: str, space: str, mask: Tensor) -> None:
    """Multiply the mask of a layer, (K, *units_of), into the columns that read a unit."""
    if space == "qk":  # no weight reads them: rows, of the query alone
        query, mask_KP = layer + "attention.self.query.", mask.flatten(1)
        weights[query + "weight"] = weights[query + "weight"] * mask_KP[..., None]
        weights[query + "bias"] = weights[query + "bias"] * mask_KP
        return
    readers = [linear.name for linear in LINEARS if linear.inputs in AXES[space]]
    masks_KRU = mask.flatten(1)[:, None] if len(readers) == 1 else mask.expand(-1, 3, -1)
    for reader, mask_KU in zip(readers, masks_KRU.unbind(1), strict=True):
        name = f"{layer}{reader}.weight"
        by_unit_KDUP = weights[name].unflatten(-1, (mask_KU.shape[1], -1))
        weights[name] = (by_unit_KDUP * mask_KU[:, None, :, None]).flatten(-2)


def rounded_weights(
    weights: dict[str, Tensor],
    architectures: Sequence[BertArchitecture],
    layers: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Round the pooler and these layers (None: all) to the bits of the architectures."""
    # Students in halves (see `methods/binary_bert.py`) are split alike.
    if not any(architecture.has_bits for architecture in architectures):
        return weights
    computed = dict(weights)
    for layer in range(len(architectures[0].layers)) if layers is None else layers:
        bits = [architecture.layers[layer].weight_bits for architecture in architectures]
        for linear in LINEARS:
            name = f"bert.encoder.layer.{layer}.{linear.name}.weight"
            if name in weights:  # of a layer that some student has
                halves = architectures[0].layers[layer].halves
                computed[name] = _rounded(weights[name], bits, halves)
    pooler = [architecture.pooler_bits for architecture in architectures]
    halves = architectures[0].pooler_halves
    return {**computed, _POOLER: _rounded(weights[_POOLER], pooler, halves)}


def rounded_activations(
    inputs_KTI: Tensor, architectures: Sequence[BertArchitecture], layer: int
) -> Tensor:
    """Round inputs of a layer for the students whose architectures say so."""
    bits = [architecture.layers[layer].input_bits for architecture in architectures]
    return _through(packing.rounded_inputs, inputs_KTI, bits) if any(bits) else inputs_KTI


def rounded_products(
    factor_N: Tensor, architectures: Sequence[BertArchitecture], layer: int
) -> Tensor:
    """Round Q, K, V or the attention of a layer, (K x B, ...), for these students."""
    bits = [architecture.layers[layer].attention_bits for architecture in architectures]
    if not any(bits):
        return factor_N
    of_each_KB = factor_N.unflatten(0, (len(bits), -1))
    return _through(packing.rounded_inputs, of_each_KB, bits).flatten(0, 1)


def _rounded(weight_KOI: Tensor, bits: Sequence[int | None], halves: int | None) -> Tensor:
    if not any(bits) or not weight_KOI.numel():
        return weight_KOI
    result = _through(rounded, weight_KOI, bits)
    return result if halves is None else result.unflatten(1, (halves, -1)).sum(1)


def _through(
    rounding: Callable[[Tensor, int], Tensor], exact: Tensor, bits: Sequence[int | None]
) -> Tensor:
    """Rounded numbers of each student, with the gradient of the exact ones."""
    return torch.stack(
        [
            full if few is None else full + (rounding(full.detach(), few) - full).detach()
            for full, few in zip(exact.unbind(), bits, strict=True)
        ]
    )

"""Masks as part of the weights: what a unit puts out is scaled where it is read.

To multiply a unit touches every token; to multiply the column that reads it touches a weight once.
Shapes as in `population`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def masked_weights(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, by BERT's names, with which K students compute what they do under masks.

    `masks` maps a space to (K, layers, *units_of). "heads_mix" and "ffn_mix" are matrices in place
    of masks, (K, layers, units, units): each unit becomes a sum of units.
    """
    masked = dict(weights)
    for space, of_layers in masks.items():
        for layer, mask in enumerate(of_layers.unbind(1)):
            _mask(masked, f"bert.encoder.layer.{layer}.", space, mask)
    return masked


def _mask(weights: dict[str, Tensor], layer: str, space: str, mask: Tensor) -> None:
    """Put the mask of a layer, (K, *units_of), into its weights."""
    of_qkv = layer + "attention.self."
    of_heads, of_ffn = layer + "attention.output.dense.weight", layer + "output.dense.weight"
    match space:
        case "heads":
            by_head_KDHP = weights[of_heads].unflatten(-1, (mask.shape[1], -1))
            weights[of_heads] = (by_head_KDHP * mask[:, None, :, None]).flatten(-2)
        case "heads_mix":
            by_head_KDGP = weights[of_heads].unflatten(-1, (mask.shape[1], -1))
            weights[of_heads] = torch.einsum("kdgp,kgh->kdhp", by_head_KDGP, mask).flatten(-2)
        case "v":
            weights[of_heads] = weights[of_heads] * mask.flatten(1)[:, None]
        case "ffn":
            weights[of_ffn] = weights[of_ffn] * mask[:, None]
        case "ffn_mix":
            weights[of_ffn] = weights[of_ffn] @ mask
        case "qk":  # rows, of the query alone
            weight, bias = of_qkv + "query.weight", of_qkv + "query.bias"
            weights[weight] = weights[weight] * mask.flatten(1)[..., None]
            weights[bias] = weights[bias] * mask.flatten(1)
        case "input" | "input_qkv":
            each = mask.expand(-1, 3, -1).unbind(1)
            for which, mask_KD in zip(("query", "key", "value"), each, strict=True):
                name = f"{of_qkv}{which}.weight"
                weights[name] = weights[name] * mask_KD[:, None]

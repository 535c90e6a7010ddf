"""Masks as part of the weights: what a unit puts out is scaled where it is read.

To multiply a unit touches every token; to multiply the column that reads it touches a weight once.
Shapes as in `population`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from objectives.students.bert.linears import AXES, LINEARS


def masked_weights(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, by BERT's names, with which K students compute what they do under masks.

    `masks` maps a space to (K, layers, *units_of).
    """
    masked = dict(weights)
    for space, of_layers in masks.items():
        for layer, mask in enumerate(of_layers.unbind(1)):
            _mask(masked, f"bert.encoder.layer.{layer}.", space, mask)
    return masked


def _mask(weights: dict[str, Tensor], layer: str, space: str, mask: Tensor) -> None:
    """Put the mask of a layer, (K, *units_of), into its weights: the columns that read a unit."""
    if space == "qk":  # no weight reads them: rows, of the query alone
        query, mask_KP = layer + "attention.self.query.", mask.flatten(1)
        weights[query + "weight"] = weights[query + "weight"] * mask_KP[..., None]
        weights[query + "bias"] = weights[query + "bias"] * mask_KP
        return
    readers = [linear.name for linear in LINEARS if linear.inputs in AXES[space]]
    own = mask.flatten(1)[:, None] if len(readers) == 1 else mask.expand(-1, 3, -1)
    for reader, mask_KU in zip(readers, own.unbind(1), strict=True):
        name = f"{layer}{reader}.weight"
        by_unit_KDUP = weights[name].unflatten(-1, (mask_KU.shape[1], -1))
        weights[name] = (by_unit_KDUP * mask_KU[:, None, :, None]).flatten(-2)

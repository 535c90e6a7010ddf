"""Stack differently cut models, padded with units that do nothing.

Padding is zero in the rows that make a unit and the columns that use it: its output is zero and, as
each gradient is a product with one of the two, it stays zero. That holds for FFN neurons whose
activation is 0 at 0, for dimensions of Q, K and V, and for heads. A padded layer is all zeros."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod

import torch
from torch import Tensor

from objectives.students.bert.architecture import Widths
from objectives.students.bert.linears import INPUTS, LINEARS, PER_HEAD, POSITION_BIAS

LayerSizes = Sequence[Widths[int]]
"""Widths of each layer of a model."""

_LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.(.+)")
_AXES = {f"{linear.name}.weight": (linear.outputs, linear.inputs) for linear in LINEARS} | {
    f"{linear.name}.bias": (linear.outputs,) for linear in LINEARS
}
_AXES[f"{POSITION_BIAS.name}.weight"] = (POSITION_BIAS.outputs,)


def joint(models: Sequence[LayerSizes]) -> tuple[Widths[int], ...]:
    """Largest width of each kind in each layer, over all models."""
    wide = []
    for layers in zip(*models, strict=True):
        most = {name: max(getattr(layer, name) for layer in layers) for name in Widths._fields}
        for axis in PER_HEAD:
            most[axis] = most["heads"] * max(_units_along(axis, layer, 0)[1] for layer in layers)
        wide.append(Widths(**most))
    return tuple(wide)


def fuse(
    states: Sequence[Mapping[str, Tensor]],
    models: Sequence[LayerSizes],
    wide: LayerSizes,
    hidden: int,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Stack K models cut from one, padded to `wide`: weights (K, ...), and what they read."""
    # What a projection reads, (K, inputs) int64 under its name, where `hidden` stands for a zero;
    # it is missing where all models read all.
    weights, names = {}, dict.fromkeys(name for state in states for name in state)
    for name in names:
        if name.endswith(".inputs"):
            continue
        parts = [
            _resized(name, state[name], model, wide, hidden) if name in state else None
            for state, model in zip(states, models, strict=True)
        ]
        zeros = torch.zeros_like(next(weight for weight in parts if weight is not None))
        weights[name] = torch.stack([zeros if weight is None else weight for weight in parts])
    reads = {}
    for layer, widths in enumerate(wide):
        for linear in LINEARS:
            name = f"bert.encoder.layer.{layer}.{linear.name}"
            if not any(name + ".inputs" in state for state in states):
                continue
            device = weights[name + ".weight"].device
            width = getattr(widths, linear.inputs)
            reads[name] = torch.full((len(models), width), hidden, device=device)
            for row, state, model in zip(reads[name], states, models, strict=True):
                size = getattr(model[layer], linear.inputs)
                row[:size] = state.get(name + ".inputs", torch.arange(size, device=device))
    return weights, reads


def take(
    weights: Mapping[str, Tensor],
    reads: Mapping[str, Tensor],
    widths: LayerSizes,
    wide: LayerSizes,
    slot: int,
    hidden: int,
) -> dict[str, Tensor]:
    """Extract the state of one model from a stack of `fuse`, cut to `widths`."""
    state = {
        name: _resized(name, weight[slot], wide, widths, hidden)
        for name, weight in weights.items()
        if not (match := _LAYER.fullmatch(name)) or widths[int(match[1])].layers
    }
    for name, rows in reads.items():
        _, (inputs,) = _axes(name + ".weight", widths, hidden)
        if inputs < hidden:
            state[name + ".inputs"] = rows[slot, :inputs]
    return state


def _units_along(axis: str, widths: Widths[int], hidden: int) -> tuple[int, ...]:
    """Number of units along an axis; (heads, dimensions of each) along one of all heads."""
    size = getattr(widths, axis, hidden)
    if axis in PER_HEAD:
        return widths.heads, size // max(widths.heads, 1)
    return (size or hidden if axis in INPUTS else size,)


def _axes(name: str, model: LayerSizes, hidden: int) -> tuple[tuple[int, ...], ...]:
    """Numbers of units along each axis of a weight, for the axes that are cut, which come first."""
    # An axis of (heads, dimensions) runs over the dimensions of all heads, one head after another.
    match = _LAYER.fullmatch(name)
    if not match:
        return ()
    axes = _AXES.get(match[2], ())
    return tuple(_units_along(axis, model[int(match[1])], hidden) for axis in axes)


def _resized(
    name: str, weight: Tensor, current: LayerSizes, wanted: LayerSizes, hidden: int
) -> Tensor:
    """Resize a weight from the widths `current` to `wanted`, by padding or cutting."""
    before, after = _axes(name, current, hidden), _axes(name, wanted, hidden)
    if before == after:
        return weight
    # More rows than units: the halves of `methods/binary_bert.py`.
    halves = weight.split(max(prod(before[0]), 1))
    if len(halves) > 1:
        return torch.cat([_resized(name, half, current, wanted, hidden) for half in halves])
    rest = weight.shape[len(before) :]
    sizes, resized = [*chain(*before), *rest], weight.new_zeros([*chain(*after), *rest])
    common = tuple(slice(min(pair)) for pair in zip(sizes, resized.shape, strict=True))
    resized[common] = weight.reshape(sizes)[common]
    return resized.reshape([*map(prod, after), *rest])

"""Smaller models as slices of one student, whose units are ordered by score.

A model of any size is the first heads and the first neurons of each layer that it has: views of the
weights of the whole student, or masks of its units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from objectives.device import on_device
from objectives.measures.budget import units_that_fit
from objectives.measures.cost import Cost
from objectives.students.bert.architecture import BertArchitecture, BertShape, LayerUnits, Widths
from objectives.students.bert.linears import LINEARS, PER_HEAD, POSITION_BIAS
from objectives.training.population import Population

Model = tuple[Widths[int], ...]
"""Widths of each layer of a model."""

_GRID = 65
"""Number of sizes from which a training step draws, geometric from the smallest to the whole."""


@dataclass(frozen=True, eq=False)
class Order:
    """Order of the units of each layer."""

    shape: BertShape
    heads: Tensor
    """Heads (layers, heads) int64: the first is removed last."""
    ffn: Tensor
    """FFN neurons (layers, neurons) int64."""

    @classmethod
    def by_scores(cls, shape: BertShape, scores: Mapping[str, Tensor]) -> "Order":
        """Order units by falling score, (layers, units); spaces without scores keep their order."""

        def ordered(space: str, size: int) -> Tensor:
            values = scores.get(space, torch.zeros(shape.layers, size))
            return values.cpu().argsort(dim=-1, descending=True, stable=True)

        return cls(shape, ordered("heads", shape.heads), ordered("ffn", shape.ffn))

    @cached_property
    def reverse(self) -> "Order":
        """Inverse order."""
        return Order(self.shape, self.heads.argsort(-1), self.ffn.argsort(-1))

    def applied(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reorder the units of a classifier's state; it computes the same."""
        ordered = dict(state)
        for layer in range(self.shape.layers):
            for linear in LINEARS:
                name = f"bert.encoder.layer.{layer}.{linear.name}"
                weight, bias = ordered[f"{name}.weight"], ordered[f"{name}.bias"]
                if (rows := self._places(linear.outputs, layer)) is not None:
                    weight, bias = weight[rows], bias[rows]
                if (columns := self._places(linear.inputs, layer)) is not None:
                    weight = weight[:, columns]
                ordered |= {f"{name}.weight": weight, f"{name}.bias": bias}
            name = f"bert.encoder.layer.{layer}.{POSITION_BIAS.name}.weight"
            if name in ordered:
                ordered[name] = ordered[name][self.heads[layer]]
        return ordered

    def _places(self, axis: str, layer: int) -> Tensor | None:
        """Source indices along an axis; None if no unit lies along it."""
        if axis in PER_HEAD:
            size = self.shape.head_dim
            return (self.heads[layer, :, None] * size + torch.arange(size)).flatten()
        return self.ffn[layer] if axis == "ffn" else None


def sliced(weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """First heads and neurons of each layer of one student, as views of its (1, ...)."""
    views = dict(weights)
    for layer, widths in enumerate(model):
        for linear in LINEARS:
            name = f"bert.encoder.layer.{layer}.{linear.name}"
            rows, columns = (getattr(widths, a, None) for a in (linear.outputs, linear.inputs))
            views[f"{name}.weight"] = views[f"{name}.weight"][:, :rows, :columns]
            views[f"{name}.bias"] = views[f"{name}.bias"][:, :rows]
        name = f"bert.encoder.layer.{layer}.{POSITION_BIAS.name}.weight"
        if name in views:
            views[name] = views[name][:, : widths.heads]
    return views


def smaller(
    population: Population, model: Model, rounding: tuple[BertArchitecture, ...] = ()
) -> Population:
    """Student of one size, equal to the whole student restricted to this slice."""
    # Its matrices are copies in the precision of the matmuls, with gradients of their own: a
    # gradient through the views would be padded with zeros to the whole size, and the weights be
    # brought to the precision again in each pass. With `rounding` they stay in float32, which is
    # what a model is rounded from.
    weights, dtype = {}, torch.float32 if rounding else population.matmul_dtype
    for name, view in sliced(population.weights, model).items():
        weight = view.detach()
        if weight.ndim == 3:  # a matrix, by its inputs, as `Population` has them
            weight = weight.mT.to(dtype).contiguous().mT
        weights[name] = weight.requires_grad_()
    return replace(population, weights=weights, widths=(model,), padded=model, rounding=rounding)


def row_masks(models: Sequence[Model], whole: Model, rows: int, device: str) -> dict[str, Tensor]:
    """Masks (1, rows, layers, units) of models that take turns on the rows of a batch."""
    masks = {}
    deep = all(layer.layers for model in models for layer in model)
    for space in ("heads", "ffn") if deep else ("heads", "ffn", "layers"):
        counts = torch.tensor([[getattr(layer, space) for layer in model] for model in models])
        of_rows = counts[torch.arange(rows) % len(models)]
        units = torch.arange(getattr(whole[0], space))
        masks[space] = on_device((units < of_rows[..., None]).float()[None], device)
    return masks


def along(scores: Mapping[str, Tensor], smallest: float, cost: Cost) -> list[Model]:
    """Models of highest score, from the smallest (a share of the whole cost) to the whole."""
    models = []
    for number in range(_GRID):
        limit = cost.full * smallest ** (1 - number / (_GRID - 1))
        fitting = units_that_fit(scores, cost, limit=limit)
        masks = {space: mask.tolist() for space, mask in fitting.items()}
        models.append(BertArchitecture.from_masks(cost.shape, masks).widths(cost.shape))
    return models


def uniform(
    shares: Sequence[float], spaces: Sequence[str], shape: BertShape, depth: float = 1.0
) -> list[Model]:
    """Models with these shares of each layer's units, rounded, and the layers of this depth."""
    models, stays, gone = [], layers_at(depth, shape.layers), LayerUnits((), (), dropped=True)
    for share in shares:
        heads, ffn = (
            tuple(range(round(share * units) if space in spaces else units))
            for space, units in (("heads", shape.heads), ("ffn", shape.ffn))
        )
        units = [LayerUnits(heads, ffn) if n in stays else gone for n in range(shape.layers)]
        models.append(tuple(layer.widths(shape) for layer in units))
    return models


def layers_at(depth: float, layers: int) -> list[int]:
    """Layers of a depth m in (0, 1]: floor(i / m) for i < round(m layers) (Hou et al. 2020)."""
    return [int(i / depth) for i in range(round(depth * layers))]

"""Weights of each width as projections of one student's (APS, Wang et al. 2020).

A layer of U units, heads or neurons, has for each width o a matrix P_o, (U, o), whose columns have
norm 1: unit j of that width is the mix of all units that column j says. A head is mixed whole, its
query, key, value and output alike, so that its attention is that of a head; a neuron in both
matrices of its layer; biases as rows are. Two widths share the squared norm of the covariance of
their weights, if those of the student are independent with variance 1. But for a constant factor:

    Phi = the sum of ||P_o^T P_q||^2 over widths o <= q, layers and kinds of units.

With columns of the identity a projection is a choice of units. The first of an order for each width
("ordinal": the slices of `slices.py`) share most; choices that use all units equally often
("independent") least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from objectives.measures.budget import places
from objectives.students.bert.architecture import BertArchitecture, BertShape
from objectives.students.bert.linears import AXES, LINEARS
from objectives.training.population import Population
from objectives.weights.slices import Model

Sharing = Literal["ordinal", "independent", "transition"]
"""What the projections are: a choice of units, or at first nearly "ordinal" and then moved."""


class Projections(dict[str, dict[int, Tensor]]):
    """By kind of units and width: P of all layers, (layers, U, width)."""

    def __init__(self, sharing: Sharing, orders: Mapping[str, Tensor], shares: Sequence[float]):
        """`orders` are of each kind of units, (layers, U) int64, the most important first. Widths
        are shares of U, rounded, at least 1."""
        super().__init__({space: {} for space in orders})
        generator = torch.Generator().manual_seed(0)
        for space, order_LU in orders.items():
            units, begun = order_LU.shape[1], 0
            for width in dict.fromkeys(max(1, round(share * units)) for share in shares):
                chosen_LO = order_LU.roll(-begun, 1)[:, :width].sort(-1).values
                own = functional.one_hot(chosen_LO, units).mT.float()
                if sharing == "independent":  # the next width goes on where this one ends
                    begun += width
                if sharing == "transition":  # at "ordinal" itself Phi is stationary
                    noise = 1e-3 * torch.randn(own.shape, generator=generator)
                    own = functional.normalize(own + noise.to(own.device), dim=1)
                self[space][width] = own

    @torch.no_grad()
    def separate(self, rate: float) -> Tensor:
        """A step down the gradient of Phi, 2 (P_o P_o^T + sum over all q of P_q P_q^T) P_o, after
        which columns have norm 1 again. Phi before it, (1,)."""
        twice = []
        for of_widths in self.values():
            shared = torch.stack([own @ own.mT for own in of_widths.values()]).sum(0)
            twice.append(shared.square().sum())
            for width, own in of_widths.items():
                inner = own.mT @ own
                twice.append(inner.square().sum())
                gradient = 2 * (shared @ own + own @ inner)
                of_widths[width] = functional.normalize(own - rate * gradient, dim=1)
        return torch.stack(twice).sum()[None] / 2

    def units(self, model: Model, shape: BertShape) -> BertArchitecture:
        """The units that weigh most in a model of these widths: of a choice those chosen."""
        masks = {}
        for space, of_widths in self.items():
            widths = [getattr(layer, space) for layer in model]
            weight = [of_widths[own][n].square().sum(-1) for n, own in enumerate(widths)]
            ranked = places(torch.stack(weight).cpu())
            masks[space] = (ranked < torch.tensor(widths)[:, None]).tolist()
        return BertArchitecture.from_masks(shape, masks)

    def applied(self, population: Population, model: Model) -> Population:
        """The student of these widths, by the weights of a population of one; differentiable."""
        weights = dict(population.weights)
        for space, layer, linear, axis in product(self, range(len(model)), LINEARS, (1, 2)):
            if linear[axis] in AXES[space]:
                mix = self[space][getattr(model[layer], space)][layer]
                for part in ("weight", "bias") if axis == 1 else ("weight",):
                    name = f"bert.encoder.layer.{layer}.{linear.name}.{part}"
                    weights[name] = _mixed(weights[name], axis, mix)
        return replace(population, weights=weights, widths=(model,), padded=model)


def _mixed(weight: Tensor, axis: int, mix_UO: Tensor) -> Tensor:
    """A weight whose units along an axis, of one or more rows each, become mixes of them."""
    by_unit = weight.movedim(axis, -1).unflatten(-1, (len(mix_UO), -1))
    return torch.einsum("...up,uo->...op", by_unit, mix_UO).flatten(-2).movedim(-1, axis)

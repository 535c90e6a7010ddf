"""Keeps weights that learn another task from forgetting the last (CAS, Pasunuru & Bansal 2019).

theta are the weights and theta_ref what they were, psi = theta - theta_ref. The loss of the new
task is joined by

    lambda_b Omega(psi) + lambda_o sum over weights || psi theta_ref^T ||_F,

where a matrix maps inputs to outputs as `nn.Linear` stores it: where the product is 0, theta gives
of any x in the row space of theta_ref what theta_ref gives. Omega is the sum over inputs of the
norm of all weights that read them. Of a vector the two are sum |psi| and || psi * theta_ref ||.
Before the first task theta_ref is 0: theta is to be sparse, so that there is room for the next.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm


def by_inputs(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight of a module as matrices (G, O, I): what its O outputs read of I inputs, in each of
    the G groups of a convolution, whose inputs are those of a window. A vector as it is."""
    if weight.ndim == 1:
        return weight
    if isinstance(module, nn.Embedding):  # it reads one-hot rows
        return weight.T[None]
    groups: int = getattr(module, "groups", 1)
    return weight.reshape(groups, -1, weight[0].numel())


def block_sparsity(change: Tensor) -> Tensor:
    """Omega of a change as `by_inputs` has it: a scalar."""
    return change.abs().sum() if change.ndim == 1 else vector_norm(change, dim=-2).sum()


def orthogonality(change: Tensor, reference: Tensor) -> Tensor:
    """|| psi theta_ref^T ||_F of both as `by_inputs` has them: a scalar, 0 where the change reads
    nothing that the reference reads."""
    read: Tensor = vector_norm(change * reference if change.ndim == 1 else change @ reference.mT)
    return read


class Anchor:
    """Weights that are to stay near what they are now, or before the first task near 0."""

    def __init__(self, parts: nn.Module, learnt: Collection[Tensor]):
        """`parts` are about to learn; of their weights those that earlier tasks have `learnt` are
        held, or all where there are none."""
        self._held = [
            (module, weight, by_inputs(module, weight.detach().clone() * bool(learnt)))
            for module in parts.modules()
            for weight in module.parameters(recurse=False)
            if weight.requires_grad and (not learnt or weight in learnt)
        ]

    def penalty(self, sparsity_weight: float, orthogonality_weight: float) -> Tensor:
        """What is added to the loss: a scalar."""
        terms = []
        for module, weight, reference in self._held:
            change = by_inputs(module, weight) - reference
            terms.append(sparsity_weight * block_sparsity(change))
            terms.append(orthogonality_weight * orthogonality(change, reference))
        return torch.stack(terms).sum()

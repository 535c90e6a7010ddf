"""The gradient of alpha through a step of the weights: second-order DARTS (Liu et al. 2019).

alpha should be good for the weights that it leads to, not for those of the moment. One plain step
on the train loss stands for these: w' = w - xi grad_w L_train(w, alpha). The chain rule gives

    grad_alpha L(w', alpha) - xi grad^2_{alpha, w} L_train(w, alpha) v,    v = grad_w' L(w', alpha)

and the second term is a difference of two gradients at w +- eps v, eps = 0.01 / |v|: exact where
L_train is quadratic in w. xi = 0 is the first order. The paper's code unrolls the optimiser's
momentum and weight decay as well, which its formula does not; here neither is.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Loss = Callable[[Tensors, Tensors], Tensor]
"""Of weights and alpha, by name: a scalar."""

_REACH = 0.01
"""Norm of eps v, as in the paper's code."""


def unrolled_gradients(
    weights: Tensors, alpha: Tensors, train_loss: Loss, alpha_loss: Loss, step_size: float
) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of alpha, by name, and the loss of alpha at w'.

    `step_size` is xi, >= 0. The weights stay as they are.
    """
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    ahead = weights
    if step_size:
        (downhill,) = _gradients(train_loss(weights, alpha), weights)
        ahead = {
            name: (weight.detach() - step_size * downhill[name]).requires_grad_()
            for name, weight in weights.items()
        }
    loss = alpha_loss(ahead, alpha)
    if not step_size:
        (direct,) = _gradients(loss, alpha)
        return direct, loss.detach()
    direct, direction = _gradients(loss, alpha, ahead)
    norm = torch.cat([v.flatten() for v in direction.values()]).norm()
    reach = _REACH / max(norm.item(), torch.finfo(norm.dtype).tiny)  # alpha may be elsewhere

    def of_train(sign: int) -> Tensors:
        moved = {
            name: weight.detach() + sign * reach * direction[name]
            for name, weight in weights.items()
        }
        (gradients,) = _gradients(train_loss(moved, alpha), alpha)
        return gradients

    above, below = of_train(+1), of_train(-1)
    return {
        name: gradient - step_size * (above[name] - below[name]) / (2 * reach)
        for name, gradient in direct.items()
    }, loss.detach()


def _gradients(loss: Tensor, *inputs: Tensors) -> list[dict[str, Tensor]]:
    """Of each group of inputs; zero for what the loss does not depend on. The graph stays: soft
    choices may be made of alpha once, with the same noise, for all losses."""
    flat = [tensor for group in inputs for tensor in group.values()]
    found = iter(torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True))
    return [{name: next(found) for name in group} for group in inputs]

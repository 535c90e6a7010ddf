"""Second-order DARTS: the gradient through a step of the weights, against the exact one."""

import pytest
import torch
from torch import Tensor

from objectives.methods.cells.base.soft_search import BatchLoss, Tensors, unrolled_gradients


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("step_size", [0.0, 0.05, 1.0])
def test_it_is_exact_on_a_quadratic(step_size: float) -> None:
    """L_train = w A w / 2 - w B alpha, L_val = |w - c|^2 / 2: the gradient is xi B^T (w' - c)."""
    square, B = drawn(5, 5), drawn(5, 4, seed=1)
    A, c = square @ square.T, drawn(5, seed=2)
    w, alpha = drawn(5, seed=3), drawn(4, seed=4).requires_grad_()
    kept = w.clone()

    found, loss = unrolled_gradients(
        {"w": w},
        {"alpha": alpha},
        lambda ws, alphas: ws["w"] @ A @ ws["w"] / 2 - ws["w"] @ B @ alphas["alpha"],
        lambda ws, alphas: (ws["w"] - c).square().sum() / 2,
        step_size,
    )
    ahead = w - step_size * (A @ w - B @ alpha.detach())
    torch.testing.assert_close(found["alpha"], step_size * (ahead - c) @ B, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(loss, (ahead - c).square().sum() / 2)
    assert torch.equal(w, kept)
    assert alpha.grad is None


def mlp(x: Tensor, y: Tensor) -> BatchLoss:
    """Squared error of a small MLP whose hidden units alpha scales."""

    def loss(weights: Tensors, alpha: Tensors) -> Tensor:
        hidden = (x @ weights["in"]).tanh() * alpha["a"].sigmoid()
        return ((hidden @ weights["out"])[..., 0] - y).square().mean()

    return loss


def test_it_is_near_to_differentiating_through_the_step() -> None:
    train, validation = (mlp(drawn(20, 3, seed=s), drawn(20, seed=s + 1)) for s in (1, 3))
    weights = {"in": drawn(3, 6, seed=5) / 3, "out": drawn(6, 1, seed=6) / 3}
    alpha = {"a": drawn(6, seed=7).requires_grad_()}
    found, _ = unrolled_gradients(weights, alpha, train, validation, 0.5)

    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    downhill = torch.autograd.grad(train(leaves, alpha), list(leaves.values()), create_graph=True)
    ahead = {n: w - 0.5 * g for (n, w), g in zip(leaves.items(), downhill, strict=True)}
    (exact,) = torch.autograd.grad(validation(ahead, alpha), [alpha["a"]])
    assert (found["a"] - exact).norm() < 0.01 * exact.norm()

    (first,) = torch.autograd.grad(validation(weights, alpha), [alpha["a"]])
    assert (first - exact).norm() > 0.05 * exact.norm()  # the second order is no trifle here
    without, _ = unrolled_gradients(weights, alpha, train, validation, 0.0)
    torch.testing.assert_close(without["a"], first)
    tiny, _ = unrolled_gradients(weights, alpha, train, validation, 1e-7)
    torch.testing.assert_close(tiny["a"], first, atol=1e-6, rtol=1e-5)


def test_weights_without_influence_change_nothing() -> None:
    """A super-net of which one path is computed: the others have no gradient."""
    alpha = {"a": torch.tensor([0.3], requires_grad=True)}
    weights = {"used": torch.tensor([2.0]), "unused": torch.tensor([5.0])}

    def loss(weights: Tensors, alpha: Tensors) -> Tensor:
        return (weights["used"] * alpha["a"]).square().sum()

    found, _ = unrolled_gradients(weights, alpha, loss, loss, 0.1)
    alone, _ = unrolled_gradients({"used": weights["used"]}, alpha, loss, loss, 0.1)
    torch.testing.assert_close(found["a"], alone["a"])

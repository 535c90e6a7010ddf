"""Second-order DARTS: the gradient through a step of the weights, against the exact one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
import torch
from torch import Tensor

from objectives.bilevel import Tensors, unrolled_gradients
from objectives.gradient_alpha import GradientAlpha
from objectives.methods.mask_search import MaskSearch
from objectives.population import Population
from objectives.problem import Problem

Loss = Callable[[Tensors, Tensors], Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("step_size", [0.0, 0.05, 1.0])
def test_it_is_exact_on_a_quadratic(step_size: float) -> None:
    """L_train = w A w / 2 - w B alpha, L_val = |w - c|^2 / 2: the gradient is xi B^T (w' - c)."""
    students, width, units = 3, 5, 4
    square, B = drawn(width, width), drawn(width, units, seed=1)
    A, c = square @ square.T, drawn(width, seed=2)
    w, alpha = drawn(students, width, seed=3), drawn(students, units, seed=4).requires_grad_()
    kept = w.clone()

    found, loss = unrolled_gradients(
        {"w": w},
        {"alpha": alpha},
        lambda ws, alphas: (
            torch.einsum("ki,ij,kj->k", ws["w"], A, ws["w"]) / 2
            - torch.einsum("ki,ij,kj->k", ws["w"], B, alphas["alpha"])
        ),
        lambda ws, alphas: (ws["w"] - c).square().sum(1) / 2,
        step_size,
    )
    ahead = w - step_size * (w @ A - alpha.detach() @ B.T)
    torch.testing.assert_close(found["alpha"], step_size * (ahead - c) @ B, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(loss, (ahead - c).square().sum(1) / 2)
    assert torch.equal(w, kept)
    assert alpha.grad is None


def mlp(x: Tensor, y: Tensor) -> Loss:
    """Squared error of a small MLP whose hidden units alpha scales; (K,)."""

    def loss(weights: Tensors, alpha: Tensors) -> Tensor:
        hidden = (x @ weights["in"]).tanh() * alpha["a"].sigmoid()[:, None]
        return ((hidden @ weights["out"])[..., 0] - y).square().mean(1)

    return loss


def test_it_is_near_to_differentiating_through_the_step() -> None:
    train, validation = (mlp(drawn(20, 3, seed=s), drawn(20, seed=s + 1)) for s in (1, 3))
    weights = {"in": drawn(2, 3, 6, seed=5) / 3, "out": drawn(2, 6, 1, seed=6) / 3}
    alpha = {"a": drawn(2, 6, seed=7).requires_grad_()}
    found, _ = unrolled_gradients(weights, alpha, train, validation, 0.5)

    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    downhill = torch.autograd.grad(
        train(leaves, alpha).sum(), list(leaves.values()), create_graph=True
    )
    ahead = {n: w - 0.5 * g for (n, w), g in zip(leaves.items(), downhill, strict=True)}
    (exact,) = torch.autograd.grad(validation(ahead, alpha).sum(), [alpha["a"]])
    assert (found["a"] - exact).norm() < 0.01 * exact.norm()

    (first,) = torch.autograd.grad(validation(weights, alpha).sum(), [alpha["a"]])
    assert (first - exact).norm() > 0.05 * exact.norm()  # the second order is no trifle here
    without, _ = unrolled_gradients(weights, alpha, train, validation, 0.0)
    torch.testing.assert_close(without["a"], first)


def test_no_student_sees_another() -> None:
    train, validation = (mlp(drawn(20, 3, seed=s), drawn(20, seed=s + 1)) for s in (1, 3))
    weights = {"in": drawn(2, 3, 6, seed=5), "out": drawn(2, 6, 1, seed=6)}
    alpha = {"a": drawn(2, 6, seed=7).requires_grad_()}
    together, _ = unrolled_gradients(weights, alpha, train, validation, 0.5)
    for student in range(2):
        alone, _ = unrolled_gradients(
            {name: weight[student : student + 1] for name, weight in weights.items()},
            {"a": alpha["a"][student : student + 1]},
            train,
            validation,
            0.5,
        )
        torch.testing.assert_close(together["a"][student], alone["a"][0])


@pytest.mark.parametrize("step_size", [0.0, 0.2])
def test_the_operation_that_fits_wins(step_size: float) -> None:
    """One edge, y = x: the identity fits, the square cannot. Alpha and weights take turns."""
    x = drawn(64, seed=1)
    operations = torch.stack([x, x.square()])

    def loss(weights: Tensors, alpha: Tensors) -> Tensor:
        mixed = weights["w"] * torch.einsum("ko,ob->kb", alpha["a"].softmax(-1), operations)
        return (mixed - x).square().mean(1)

    weights, alpha = (torch.zeros(1, units, dtype=torch.float64) for units in (1, 2))
    weights = weights + 0.5
    for _ in range(200):
        leaf = {"a": alpha.requires_grad_()}
        found, _ = unrolled_gradients({"w": weights}, leaf, loss, loss, step_size)
        alpha = alpha.detach() - 0.5 * found["a"]
        weights = weights.requires_grad_()
        (downhill,) = torch.autograd.grad(loss({"w": weights}, {"a": alpha}).sum(), [weights])
        weights = weights.detach() - 0.1 * downhill
    share = alpha.softmax(-1)
    assert share[0, 0] > 0.9
    torch.testing.assert_close(share.sum(-1), torch.ones(1, dtype=torch.float64))


def test_alpha_of_the_mask_search_moves_along_it(problem: Problem) -> None:
    """The way differs from the first order's, ends in it as xi goes to 0, and keeps the weights."""

    def moved(step: float) -> Tensor:
        method = MaskSearch(
            alpha_optimizer="sgd", grad_rescale=1.0, flops_weight=0.0, unrolled_step=step
        )
        alpha = GradientAlpha([method], problem, seed=0)
        population = Population.of([problem.student])
        before = {name: weight.clone() for name, weight in population.weights.items()}
        start = alpha.alpha["heads"].detach().clone()
        for _ in islice(range(3), 1):
            alpha.learn(population, alpha.masks(0.0), 0.0)
        torch.testing.assert_close(population.weights, before, atol=0, rtol=0)
        return alpha.alpha["heads"].detach() - start

    first, tiny, second = (moved(step) for step in (0.0, 1e-8, 0.1))
    torch.testing.assert_close(tiny, first, atol=1e-7, rtol=1e-2)
    assert (second - first).norm() > 0.05 * first.norm()

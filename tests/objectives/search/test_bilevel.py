"""Second-order DARTS: the gradient through a step of the weights, against the exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from objectives.methods.mask_search import GradientAlpha, MaskSearch
from objectives.problem import Problem
from objectives.search.bilevel import Tensors, unrolled_gradients
from objectives.training.losses import task_loss
from objectives.training.stages import Loss as StageLoss
from tests.objectives.conformance import training_of

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


def look_ahead(step_size: float) -> MaskSearch:
    """Moves alpha against the gradient of its loss alone, so far that float32 shows it."""
    return MaskSearch(
        alpha_optimizer="sgd", grad_rescale=1e4, flops_weight=0.0, unrolled_step=step_size
    )


def moved(problem: Problem, loss: StageLoss, step_size: float) -> Tensor:
    """How far one step takes alpha, all spaces in one row; it leaves the weights alone."""
    alpha = GradientAlpha([look_ahead(step_size)], problem, seed=0)
    training = training_of(problem, loss)
    before = {name: weight.clone() for name, weight in training.population.weights.items()}
    start = row_of({space: value.detach().clone() for space, value in alpha.alpha.items()})
    alpha.learn(training, alpha.masks(0.0), 0.0)
    torch.testing.assert_close(training.population.weights, before, atol=0, rtol=0)
    return row_of(alpha.alpha).detach() - start


def row_of(alpha: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in alpha.values()])


def test_alpha_of_the_mask_search_moves_along_it(problem: Problem) -> None:
    """The way differs from the first order's, and ends in it as xi goes to 0."""
    first, tiny, second = (moved(problem, "prediction", step) for step in (0.0, 1e-5, 1.0))
    torch.testing.assert_close(tiny, first, atol=1e-3, rtol=1e-2)
    assert (second - first).norm() > 0.05 * first.norm()


@pytest.mark.parametrize("loss", ["prediction", "prediction+hidden"])
def test_alpha_of_the_mask_search_looks_along_the_loss_of_the_stage(
    problem: Problem, loss: StageLoss
) -> None:
    """Against the chain rule itself, differentiated through the step of the weights. The student
    has moved away from the teacher, so that each loss has a slope."""
    student, generator = copy.deepcopy(problem.student), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in student.bert.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    problem = replace(problem, student=student)
    training, alpha = training_of(problem, loss), GradientAlpha([look_ahead(1.0)], problem, seed=0)
    size = alpha.method.batch_size
    batch = next(problem.alpha.shuffled(size, 0, "cpu"))
    train = next(problem.train.shuffled(size, 1, "cpu"))
    masks, population = alpha.masks(0.0), training.population
    with sdpa_kernel(SDPBackend.MATH):  # the one that can be differentiated twice
        downhill = torch.autograd.grad(
            training.loss(population, train, masks).sum(),
            list(population.weights.values()),
            create_graph=True,
            materialize_grads=True,
        )
        ahead = {
            name: weight - gradient
            for (name, weight), gradient in zip(population.weights.items(), downhill, strict=True)
        }
        logits = replace(population, weights=ahead).logits(batch, masks)
        exact = torch.autograd.grad(
            task_loss(logits, batch.labels).sum(), list(alpha.alpha.values())
        )
    uphill = torch.cat([gradient.flatten() for gradient in exact])
    found = moved(problem, loss, 1.0)
    torch.testing.assert_close(found / found.norm(), -uphill / uphill.norm(), atol=5e-3, rtol=1e-2)

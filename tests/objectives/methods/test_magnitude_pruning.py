"""Magnitude pruning: the mean square of what a unit takes with it, against the cut itself."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from objectives.measures.bits import bytes_of
from objectives.measures.evaluate import predict
from objectives.methods.baselines.magnitude_pruning import (
    MagnitudePruning,
    means_over_units,
    weight_scores,
)
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, units_of
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import LINEARS
from objectives.training.losses import sequence_losses
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance, search_alone

QUICK = MagnitudePruning(batch_size=16, tolerance=0.1, stages=(RECOVER,))


class TestConformance(PruningConformance):
    quick = QUICK


def mean_squares(problem: Problem) -> dict[str, torch.Tensor]:
    return means_over_units(weight_scores(problem, "magnitude"), TINY)


def weights_of(problem: Problem, space: str, place: tuple[int, ...]) -> tuple[float, int]:
    """Sum of squares and number of the matrix weights that closing a unit removes."""
    mask = torch.ones(TINY.layers, *units_of(TINY, space), dtype=torch.bool)
    if space in ("qk", "v"):  # one dimension of every head, so that they stay equally many
        mask[place[0], :, place[2]] = False
    else:
        mask[place] = False
    student = problem.student
    model = cut(
        student.state_dict(),
        student.config,
        BertArchitecture.from_masks(TINY, {space: mask.tolist()}),
    )

    def total(weights: dict[str, torch.Tensor]) -> tuple[float, int]:
        matrices = [w for n, w in weights.items() if n.endswith("weight") and w.ndim == 2]
        return sum(float(w.detach().square().sum()) for w in matrices), sum(
            w.numel() for w in matrices
        )

    before, after = total(dict(student.named_parameters())), total(dict(model.named_parameters()))
    return before[0] - after[0], before[1] - after[1]


@pytest.mark.parametrize(
    ("space", "place"), [("heads", (1, 2)), ("ffn", (0, 5)), ("input", (2, 0, 3))]
)
def test_it_is_the_mean_square_of_what_a_cut_removes(
    problem: Problem, space: str, place: tuple[int, ...]
) -> None:
    squares, number = weights_of(problem, space, place)
    expected = squares / number
    actual = mean_squares(problem)[space][place]
    assert actual.item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("space", ["qk", "v"])
def test_a_dimension_of_all_heads_is_what_the_cut_of_it_removes(
    problem: Problem, space: str
) -> None:
    squares, number = weights_of(problem, space, (1, 0, 3))
    actual = mean_squares(problem)[space][1, :, 3].mean()
    assert actual.item() == pytest.approx(squares / number, rel=1e-3)


def test_inputs_of_q_k_and_v_together_are_the_mean_of_the_three(problem: Problem) -> None:
    squares = mean_squares(problem)
    torch.testing.assert_close(squares["input"], squares["input_qkv"].mean(1, keepdim=True))


def test_the_loudest_units_stay(problem: Problem) -> None:
    chosen = QUICK.choose(problem, 0)
    squares = mean_squares(problem)["ffn"]
    kept = torch.tensor(chosen.masks(TINY, ("ffn",))["ffn"])
    assert squares[kept].min() >= squares[~kept].max()


def test_scope_layer_keeps_equal_shares_of_the_loudest(problem: Problem) -> None:
    chosen = replace(QUICK, scope="layer").choose(problem, 0)
    assert max(chosen.ffn_per_layer) - min(chosen.ffn_per_layer) <= 1
    squares = mean_squares(problem)["ffn"]
    kept = torch.tensor(chosen.masks(TINY, ("ffn",))["ffn"])
    for row, mask in zip(squares, kept, strict=True):
        assert row[mask].min() >= row[~mask].max()


NAMES = [
    f"bert.encoder.layer.{layer}.{linear.name}.weight"
    for layer in range(TINY.layers)
    for linear in LINEARS
]


def test_sensitivity_and_curvature_are_the_terms_of_the_loss(problem: Problem) -> None:
    """g w against the change that was measured as a weight fades; h by transformers' own model, a
    row at a time: what optimal brain damage says is exact where the loss is h (x - w)^2 / 2."""
    student = copy.deepcopy(problem.student).double()
    labels = torch.from_numpy(problem.alpha.labels)
    own = dict(student.named_parameters())
    (name, second) = NAMES[4], torch.zeros_like(own[NAMES[4]])

    def loss() -> float:
        with torch.no_grad():
            logits = predict(student, problem.alpha, "cpu").double()
        return float(sequence_losses(logits[None], labels).mean())

    sensitivity = weight_scores(problem, "sensitivity")[name]
    place = divmod(int(sensitivity.argmax()), TINY.hidden)
    changed = []
    for faded in (-0.05, 0.05):
        with torch.no_grad():
            before = own[name][place].clone()
            own[name][place] *= 1 - faded
            changed.append(loss())
            own[name][place] = before
    measured = (changed[1] - changed[0]) / 0.1
    assert abs(measured) == pytest.approx(float(sensitivity[place]), rel=0.02)
    own[name].requires_grad_()
    for batch in problem.alpha.in_order(1, "cpu"):
        logits = student(**batch.inputs).logits
        total = sequence_losses(logits[None], batch.labels).sum()
        second += torch.autograd.grad(total, own[name])[0].square() / len(problem.alpha)
    expected = (second * own[name].square() / 2).float()
    found = weight_scores(problem, "curvature")[name]
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-9)


@pytest.mark.parametrize("criterion", ["sensitivity", "curvature"])
def test_every_criterion_meets_the_budget_with_the_units_worth_most(
    problem: Problem, criterion: Any
) -> None:
    method = replace(QUICK, criterion=criterion, spaces=("ffn",), target_ratio=0.85)
    chosen = method.choose(problem, 0)
    scores = method.scores(problem, 0)["ffn"]
    kept = torch.tensor(chosen.masks(TINY, ("ffn",))["ffn"])
    assert scores[kept].min() >= scores[~kept].max()
    assert chosen != replace(method, criterion="magnitude").choose(problem, 0)


def zeros_in(model: torch.nn.Module) -> tuple[int, int]:
    """Of the weights of the layers: those that are 0, and all."""
    weights = [model.get_parameter(name) for name in NAMES]
    return sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)


@pytest.mark.parametrize("target_ratio", [1.0, 0.6])
def test_single_weights_are_0_and_stay_0_and_nothing_is_saved(
    problem: Problem, target_ratio: float
) -> None:
    sparse = replace(QUICK, target_ratio=target_ratio, sparsity=0.3)
    result = search_alone(sparse, problem)
    zeros, weights = zeros_in(result.model)
    assert zeros == round(0.3 * weights)
    dense = search_alone(replace(sparse, sparsity=0.0), problem)
    assert result.architecture == dense.architecture
    assert bytes_of(result.model.state_dict()) == bytes_of(dense.model.state_dict())
    begun = sparse.student(problem, result.architecture, 0)
    name = NAMES[3]
    stays = begun.get_parameter(name) != 0
    assert torch.equal(result.model.get_parameter(name) != 0, stays)
    assert not torch.equal(result.model.get_parameter(name), begun.get_parameter(name)), "it learns"
    if target_ratio == 1:
        sizes = torch.cat([problem.student.get_parameter(n).abs().flatten() for n in NAMES])
        gone = torch.cat([begun.get_parameter(n).flatten() for n in NAMES]) == 0
        assert sizes[gone].max() <= sizes[~gone].min()

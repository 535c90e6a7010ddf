"""Optimal brain surgeon: predicted rises against least squares, and what matters to the answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from objectives.methods.cross_distillation import curvature, leaving, rises
from objectives.problem import Problem
from objectives.pruning.importance import directions
from tests.conftest import TINY


def drawn(seed: int, outputs: int, width: int) -> tuple[Tensor, Tensor]:
    """Weights, and twice as many inputs as they have columns."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((outputs, width), (2 * width, width))
    weight, inputs = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes)
    return weight, inputs


def least_error(weight: Tensor, inputs: Tensor, stays: Tensor) -> float:
    """Of all weights of the columns that stay: the squared error of what the whole one gives."""
    wanted = inputs @ weight.T
    fitted = torch.linalg.lstsq(inputs[:, stays], wanted).solution if stays.any() else None
    left = wanted if fitted is None else wanted - inputs[:, stays] @ fitted
    return float(left.square().sum())


@given(seed=st.integers(0, 10_000), units=st.integers(1, 6), size=st.integers(1, 3))
def test_the_rises_are_those_of_the_best_weights_and_the_least_unit_leaves(
    seed: int, units: int, size: int
) -> None:
    weight, inputs = drawn(seed, 4, units * size)
    stays = torch.ones(units, dtype=torch.bool)
    error = 0.0
    for gone, rise in leaving(weight, inputs.T @ inputs, size):
        errors = {}
        for unit in stays.nonzero().flatten().tolist():
            without = stays.clone()
            without[unit] = False
            errors[unit] = least_error(weight, inputs, without.repeat_interleave(size))
        assert errors[int(gone)] == pytest.approx(min(errors.values()), rel=1e-6)
        stays[gone] = False
        error += float(rise)
        assert error == pytest.approx(errors[int(gone)], rel=1e-6)
    assert not stays.any()


def test_some_that_leave_together_raise_the_error_by_what_all_of_them_do() -> None:
    weight, inputs = drawn(0, 4, 60)
    stays, error = torch.ones(60, dtype=torch.bool), 0.0
    numbers = []
    for gone, rise in leaving(weight, inputs.T @ inputs, 1):
        stays[gone] = False
        error += float(rise)
        numbers.append(len(gone))
        assert error == pytest.approx(least_error(weight, inputs, stays), rel=1e-6)
    assert numbers[0] == 3
    assert numbers[-1] == 1
    assert sum(numbers) == 60


def test_of_two_that_do_the_same_the_first_is_worth_nothing_and_the_second_much() -> None:
    weight, inputs = drawn(1, 4, 3)
    weight, twins = weight[:, [0, 1, 1]], inputs[:, [0, 1, 1]]
    weight[:, 0] *= 10  # stays longest
    scores = rises(weight, twins.T @ twins + 1e-9 * torch.eye(3), 1)
    low, high = scores[1:].sort().values
    assert low < 1e-6 * high
    alone = least_error(weight, twins, torch.tensor([True, False, False]))
    assert float(high) == pytest.approx(alone, rel=1e-6)


def test_a_later_unit_is_never_worth_less() -> None:
    weight, inputs = drawn(2, 5, 12)
    scores = rises(weight, inputs.T @ inputs, 2)
    order = torch.cat([units for units, _ in leaving(weight, inputs.T @ inputs, 2)])
    assert (scores[order].diff() >= 0).all()


@pytest.mark.parametrize("layer", [0, TINY.layers - 1])
@pytest.mark.parametrize("space", ["heads", "ffn"])
def test_the_curvature_is_how_far_the_answer_moves(
    problem: Problem, layer: int, space: str
) -> None:
    """Against finite differences: what a block adds is changed at one token after the other."""
    student = problem.student.double()
    batch = problem.train.batch(np.array([3]), "cpu")
    found = curvature(student, [batch])[space][layer]
    block = student.bert.encoder.layer[layer]
    dense = block.attention.output.dense if space == "heads" else block.output.dense
    change = 1e-4 * torch.randn(TINY.hidden, dtype=torch.float64)
    axis = directions(batch.rows, TINY.labels).double()

    def answer(token: int | None) -> Tensor:
        def add(_: object, __: object, output: Tensor) -> Tensor:
            moved = output.clone()
            if token is not None:
                moved[0, token] += change
            return moved

        hook = dense.register_forward_hook(add)
        with torch.no_grad():
            logits = student(**batch.inputs).logits
        hook.remove()
        return (logits * axis).sum()

    last = layer == TINY.layers - 1
    tokens = [0] if last else batch.attention_mask[0].nonzero().flatten().tolist()
    moves = [float(answer(token) - answer(None)) ** 2 for token in tokens]
    student.float()
    assert float(change @ found @ change) == pytest.approx(sum(moves) / len(moves), rel=1e-2)


def test_the_hooks_are_gone(problem: Problem) -> None:
    batch = replace(problem.train).batch(np.arange(4), "cpu")
    # transformers leaves hooks of its own, once hidden states were asked for
    before = [len(module._forward_hooks) for module in problem.student.modules()]
    curvature(problem.student, [batch])
    assert [len(module._forward_hooks) for module in problem.student.modules()] == before

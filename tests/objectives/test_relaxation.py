"""From alpha to masks, where alpha starts, and the Adam that moves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from objectives.relaxation import (
    AlphaAdam,
    constant_alpha,
    geometric_temperature,
    ranked_alpha,
    sigmoid_masks,
)
from tests.conftest import TINY

SIZES = {"heads": 4, "ffn": 48}
PRICE = {"heads": 30, "ffn": 7}


def random_alpha(students: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        space: torch.randn(students, 3, units, generator=generator)
        for space, units in SIZES.items()
    } | {"qk": torch.randn(students, 3, 4, 8, generator=generator)}


def after_steps(alpha: dict[str, Tensor], step: Callable[[dict[str, Tensor]], object]) -> None:
    """Ten steps against gradients of growing and shrinking size."""
    for number in range(10):
        noise = random_alpha(next(iter(alpha.values())).shape[0], seed=number)
        step({space: 10.0 ** (number % 3 - 3) * value for space, value in noise.items()})


def test_alpha_adam_of_one_student_is_torchs_adam() -> None:
    ours, theirs = random_alpha(1, 99), random_alpha(1, 99)
    adam = torch.optim.Adam(list(theirs.values()), lr=0.03)

    def torch_step(gradients: dict[str, Tensor]) -> None:
        for space, gradient in gradients.items():
            theirs[space].grad = gradient
        adam.step()

    after_steps(ours, AlphaAdam(ours, torch.tensor([0.03])).step)
    after_steps(theirs, torch_step)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_each_student_moves_by_its_own_step_size() -> None:
    together, sizes = random_alpha(3, 99), torch.tensor([0.01, 0.1, 0.5])
    before = {space: value.clone() for space, value in together.items()}
    AlphaAdam(together, sizes).step(random_alpha(3, 0))
    for space, value in together.items():
        moved = (value - before[space]).abs().flatten(1)
        torch.testing.assert_close(moved, sizes[:, None].expand_as(moved), atol=1e-5, rtol=1e-4)


def test_masks_are_the_sigmoid_of_alpha_over_the_temperature() -> None:
    masks = sigmoid_masks({"heads": torch.tensor([-1.0, 0.0, 1.0])}, 0.5)
    expected = [0.1192029, 0.5, 0.8807971]  # 1 / (1 + exp(2)), 1/2, 1 / (1 + exp(-2))
    assert masks["heads"].tolist() == pytest.approx(expected)


def test_the_temperature_falls_by_a_constant_factor() -> None:
    temperatures = [geometric_temperature(1.0, 0.01, progress) for progress in (0, 0.5, 1)]
    assert temperatures == pytest.approx([1.0, 0.1, 0.01])


def test_constant_alpha_has_a_value_for_every_unit_of_its_spaces() -> None:
    alpha = constant_alpha(TINY, ("ffn",), 5.0, "cpu")
    assert alpha.keys() == {"ffn"}
    assert torch.equal(alpha["ffn"], torch.full((3, 48), 5.0))
    assert constant_alpha(TINY, ("qk", "input_qkv"), 1.0, "cpu")["qk"].shape == (3, 4, 8)


importances = st.fixed_dictionaries(
    {
        space: arrays("float32", (2, units), elements=st.floats(0, 100, width=32), unique=True).map(
            torch.from_numpy
        )
        for space, units in {"heads": 3, "ffn": 5}.items()
    }
)


@given(importances)
def test_ranked_alpha_spans_its_range_in_the_order_of_importance_per_flop(
    importance: dict[str, Tensor],
) -> None:
    alpha = ranked_alpha(importance, PRICE, 2.0, 8.0)
    assert {space: a.shape for space, a in alpha.items()} == {"heads": (2, 3), "ffn": (2, 5)}
    flat = torch.cat([a.flatten() for a in alpha.values()])
    worth = torch.cat([(importance[space] / PRICE[space]).flatten() for space in alpha])
    assert flat.min().item() == 2
    assert flat.max().item() == 8
    assert (worth[flat.argsort()].diff() >= 0).all()


@given(importances, st.floats(2.0, 8.0))
def test_a_common_shift_of_ranked_alpha_closes_flops_at_an_even_rate(
    importance: dict[str, Tensor], cut: float
) -> None:
    """What lies below a share of the range costs that share of the FLOPs, but for one unit."""
    alpha = ranked_alpha(importance, PRICE, 2.0, 8.0)
    below = sum(PRICE[space] * (a < cut).sum().item() for space, a in alpha.items())
    total = sum(PRICE[space] * a.numel() for space, a in alpha.items())
    assert abs(below - (cut - 2) / 6 * total) <= max(PRICE.values()) + 1e-3

"""From alpha to masks, and where alpha starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from objectives.relaxation import (
    constant_alpha,
    geometric_temperature,
    ranked_alpha,
    sigmoid_masks,
    softmax_masks,
)
from tests.conftest import TINY

PRICE = {"heads": 30, "ffn": 7}


def test_masks_are_the_sigmoid_of_alpha_over_the_temperature() -> None:
    masks = sigmoid_masks({"heads": torch.tensor([-1.0, 0.0, 1.0])}, 0.5)
    expected = [0.1192029, 0.5, 0.8807971]  # 1 / (1 + exp(2)), 1/2, 1 / (1 + exp(-2))
    assert masks["heads"].tolist() == pytest.approx(expected)


def test_equal_alphas_share_out_open_heads() -> None:
    assert torch.equal(softmax_masks(torch.full((1, 2, 4), 5.0)), torch.ones(1, 2, 4))
    masks = softmax_masks(torch.tensor([[0.0, 0.0], [0.0, 1.0986123]]))  # exp = 1, 1; 1, 3
    torch.testing.assert_close(masks, torch.tensor([[1.0, 1.0], [0.5, 1.5]]))


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

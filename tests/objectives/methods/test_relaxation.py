"""From alpha to masks, and where alpha starts."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from objectives.measures.budget import hinge_loss
from objectives.measures.cost import Units
from objectives.methods.mask_search import ranked_alpha, sigmoid_masks
from objectives.methods.width_search import draw_two, gumbel_noise, two_sampled
from objectives.students.bert.architecture import BertShape

PRICE = {"heads": 30, "ffn": 7}


def test_masks_are_the_sigmoid_of_alpha_over_the_temperature() -> None:
    masks = sigmoid_masks({"heads": torch.tensor([-1.0, 0.0, 1.0])}, 0.5)
    expected = [0.1192029, 0.5, 0.8807971]  # 1 / (1 + exp(2)), 1/2, 1 / (1 + exp(-2))
    assert masks["heads"].tolist() == pytest.approx(expected)


def test_an_open_mask_hardly_moves() -> None:
    """At 5 its slope is 2.66% of the steepest; of 312 such, log cost gives each 2.1e-5."""
    alpha = torch.tensor([0.0, 5.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sigmoid_masks({"ffn": alpha}, 1.0)["ffn"].sum(), alpha)
    assert (slope[1] / slope[0]).item() == pytest.approx(0.0266, abs=5e-5)
    neurons = torch.full((1, 1, 312), 5.0, dtype=torch.float64, requires_grad=True)
    shape = BertShape(layers=1, hidden=8, heads=2, head_dim=4, ffn=312, labels=2)
    cost = Units(shape, ("ffn",)).expected(sigmoid_masks({"ffn": neurons}, 1.0))
    loss = hinge_loss(cost, cost.detach(), torch.tensor([100.0]), torch.tensor([0.05]))
    (slope,) = torch.autograd.grad(loss.sum(), neurons)
    assert slope.flatten().tolist() == pytest.approx([2.145e-5] * 312, rel=1e-3)


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
    alpha = ranked_alpha(importance, PRICE, 2.0, 8.0, "cpu")
    assert {space: a.shape for space, a in alpha.items()} == {"heads": (2, 3), "ffn": (2, 5)}
    flat = torch.cat([a.flatten() for a in alpha.values()])
    scores = torch.cat([(importance[space] / PRICE[space]).flatten() for space in alpha])
    assert flat.min().item() == 2
    assert flat.max().item() == 8
    assert (scores[flat.argsort()].diff() >= 0).all()


@given(importances, st.floats(2.0, 8.0))
def test_a_common_shift_of_ranked_alpha_closes_flops_at_an_even_rate(
    importance: dict[str, Tensor], cut: float
) -> None:
    """What lies below a share of the range costs that share of the FLOPs, but for one unit."""
    alpha = ranked_alpha(importance, PRICE, 2.0, 8.0, "cpu")
    below = sum(PRICE[space] * (a < cut).sum().item() for space, a in alpha.items())
    total = sum(PRICE[space] * a.numel() for space, a in alpha.items())
    assert abs(below - (cut - 2) / 6 * total) <= max(PRICE.values()) + 1e-3


SHARES = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
DRAWS = 200_000


def noises(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return gumbel_noise((count, 4), generator).double()


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """With three degrees of freedom it exceeds 16.3 once in a thousand."""
    return ((counts - expected).square() / expected).sum().item()


def test_the_largest_of_gumbel_noise_falls_as_the_shares_do() -> None:
    places = (SHARES.log() + noises(DRAWS, 0)).argmax(-1)
    assert chi_square(places.bincount(minlength=4), DRAWS * SHARES) < 16.3


def test_two_are_drawn_as_without_replacement() -> None:
    first, second = draw_two(SHARES.expand(DRAWS, 4), noises(DRAWS, 1)).unbind(-1)
    assert (first != second).all()
    assert chi_square(first.bincount(minlength=4), DRAWS * SHARES) < 16.3
    expected = sum(SHARES[i] * SHARES / (1 - SHARES[i]) for i in range(4))
    expected = expected - SHARES.square() / (1 - SHARES)  # not the same one again
    assert chi_square(second.bincount(minlength=4), DRAWS * expected) < 16.3


@pytest.mark.parametrize(
    ("temperature", "first"),
    [
        (5.0, [0.30, 0.27, 0.24, 0.19]),
        (1.0, [0.43, 0.30, 0.19, 0.08]),
        (0.1, [0.50, 0.30, 0.15, 0.05]),
    ],
)
def test_two_samples_are_drawn_evenly_while_it_is_hot(
    temperature: float, first: list[float]
) -> None:
    """How often each pair is above 0, against numpy: the law of two drawn without replacement from
    softmax((log share + noise) / temperature) + 1e-7, averaged over the noise.

    The first of two is drawn as the shares say but in the cold limit.
    """
    noisy = np.log(SHARES.numpy()) + np.random.default_rng(6).gumbel(size=(DRAWS, 4))
    chance = np.exp((noisy - noisy.max(-1, keepdims=True)) / temperature)
    chance = chance / chance.sum(-1, keepdims=True) + 1e-7
    chance /= chance.sum(-1, keepdims=True)
    assert chance.mean(0).tolist() == pytest.approx(first, abs=0.01)
    both = {
        (i, j): chance[:, i] * chance[:, j] * (1 / (1 - chance[:, i]) + 1 / (1 - chance[:, j]))
        for i, j in combinations(range(4), 2)
    }

    weights = two_sampled(SHARES.log()[None, None], noises(DRAWS, 2), noises(DRAWS, 3), temperature)
    drawn = weights[0] > 0
    assert (drawn.sum(-1) == 2).all()
    for (i, j), expected in both.items():
        found = (drawn[:, i] & drawn[:, j]).double().mean().item()
        assert found == pytest.approx(expected.mean(), abs=0.006), (i, j)


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_two_samples_are_weighed_by_their_noisy_logits_over_the_temperature(
    temperature: float,
) -> None:
    alpha = torch.tensor([[0.5, -0.3, 0.2]], dtype=torch.float64)
    noise = torch.tensor([0.1, 0.9, -0.4], dtype=torch.float64)
    lots = torch.tensor([0.0, 50.0, 60.0], dtype=torch.float64)  # the last two, whatever they weigh
    weights = two_sampled(alpha, noise, lots, temperature)[0]
    odds = math.exp(((-0.3 + 0.9) - (0.2 - 0.4)) / temperature)
    expected = [0.0, odds / (1 + odds), 1 / (1 + odds)]
    assert weights.tolist() == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 2**16), st.floats(0.1, 10.0))
def test_two_samples_weigh_one_together_and_do_not_depend_on_other_rows(
    seed: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    alpha = torch.randn(3, 2, 5, generator=generator).requires_grad_()
    noise, lots = gumbel_noise((2, 2, 5), generator)
    weights = two_sampled(alpha, noise, lots, temperature)
    assert (weights > 0).sum(-1).unique().tolist() == [2]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2))
    alone = two_sampled(alpha[1:2], noise, lots, temperature)
    torch.testing.assert_close(weights[1], alone[0])


def test_two_samples_send_a_gradient_to_alpha() -> None:
    alpha = torch.zeros(1, 4, requires_grad=True)
    noise, lots = torch.tensor([0.1, 0.2, 0.0, 0.3]), torch.tensor([5.0, 5.0, 0.0, 0.0])
    weights = two_sampled(alpha, noise, lots, 1.0)
    (gradient,) = torch.autograd.grad(weights[0, 0], alpha)
    p = torch.tensor([0.1, 0.2]).softmax(0)
    torch.testing.assert_close(gradient[0, :2], torch.stack([p[0] * p[1], -p[0] * p[1]]))

"""The hinge steers into the band, the discretisation ends in it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from objectives.architecture import Architecture, BertShape, LayerUnits
from objectives.budget import discretise, hinge_loss, scheduled_ratio
from objectives.cost import Flops

COST = Flops(BertShape(layers=2, hidden=8, heads=3, head_dim=4, ffn=6, labels=2), seq_len=5)
SPACES = {"heads": 3, "ffn": 6}
PRICE = COST.of_one_unit()
NOTHING = COST.exact(Architecture((LayerUnits((), ()),) * 2))


def hinge(expected: float, actual: float, target: float = 100.0, tolerance: float = 0.25) -> Tensor:
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (expected, actual))
    return hinge_loss(*numbers, torch.tensor([target]), torch.tensor([tolerance]))


@pytest.mark.parametrize("actual", [75.0, 80.0, 100.0, 125.0])
def test_the_hinge_is_zero_on_the_closed_band(actual: float) -> None:
    assert hinge(300.0, actual).item() == 0


@pytest.mark.parametrize(("actual", "direction"), [(125.01, 1), (1e6, 1), (74.99, -1), (0.0, -1)])
def test_the_hinge_lowers_what_is_above_and_raises_what_is_below(
    actual: float, direction: int
) -> None:
    assert (hinge(300.0, actual) - hinge(299.0, actual)).sign().item() == direction


@pytest.mark.parametrize("actual", [50.0, 100.0, 200.0])
def test_the_hinges_gradient_at_alpha_agrees_with_finite_differences(actual: float) -> None:
    """Through masks and expected cost, as a search takes it."""
    generator = torch.Generator().manual_seed(0)
    alphas = [
        torch.randn(1, 2, units, generator=generator, dtype=torch.float64, requires_grad=True)
        for units in SPACES.values()
    ]
    target, tolerance = torch.tensor([100.0]), torch.tensor([0.25])

    def loss(*alphas: Tensor) -> Tensor:
        masks = {space: a.sigmoid() for space, a in zip(SPACES, alphas, strict=True)}
        return hinge_loss(COST.expected(masks), torch.tensor([actual]), target, tolerance)

    assert torch.autograd.gradcheck(loss, alphas)
    gradients = torch.autograd.grad(loss(*alphas).sum(), alphas)
    assert all(bool(gradient.any()) == (actual != 100.0) for gradient in gradients)


def test_each_student_has_its_own_hinge() -> None:
    expected = torch.tensor([300.0, 300.0, 300.0], requires_grad=True)
    loss = hinge_loss(
        expected,
        torch.tensor([200.0, 200.0, 200.0]),
        torch.tensor([100.0, 200.0, 100.0]),
        torch.tensor([0.1, 0.1, 1.0]),
    )
    (gradient,) = torch.autograd.grad(loss.sum(), expected)
    torch.testing.assert_close(gradient, torch.tensor([1 / 300, 0.0, 0.0]))


def test_the_target_falls_from_1_to_the_ratio_at_the_ramps_end() -> None:
    ratio = torch.tensor([0.25, 1.0])
    assert scheduled_ratio(ratio, 0.0, 0.8).tolist() == [1.0, 1.0]
    assert scheduled_ratio(ratio, 0.4, 0.8).tolist() == pytest.approx([0.5, 1.0])
    assert scheduled_ratio(ratio, 0.8, 0.8).tolist() == [0.25, 1.0]
    assert scheduled_ratio(ratio, 1.0, 0.8).tolist() == [0.25, 1.0]


numbers = st.floats(-10, 10, width=32)
scores_of_both = st.fixed_dictionaries(
    {
        space: arrays("float32", (2, units), elements=numbers).map(torch.from_numpy)
        for space, units in SPACES.items()
    }
)
targets = st.floats(1.0, 1.1 * COST.full)
tolerances = st.floats(0, 0.5)


def opened(scores: dict[str, Tensor]) -> Architecture:
    masks = {space: (score > 0).tolist() for space, score in scores.items()}
    return Architecture.from_masks(masks["heads"], masks["ffn"])


def in_band(architecture: Architecture, target: float, tolerance: float) -> bool:
    return abs(COST.exact(architecture) - target) <= tolerance * target


def discretised(scores: dict[str, Tensor], target: float, tolerance: float) -> Architecture:
    return discretise(scores, COST, target=target, tolerance=tolerance, threshold=0.0)


@given(scores_of_both, targets, tolerances)
def test_the_budget_is_met_where_half_the_band_is_as_wide_as_a_unit(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    assume(NOTHING <= target <= COST.full)
    assume(tolerance * target >= max(PRICE.values()))
    assert in_band(discretised(scores, target, tolerance), target, tolerance)


@given(scores_of_both, targets, tolerances)
def test_the_budget_is_met_wherever_some_choice_of_units_meets_it_from_below(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    sizes = (
        NOTHING + heads * PRICE["heads"] + ffn * PRICE["ffn"]
        for heads in range(2 * SPACES["heads"] + 1)
        for ffn in range(2 * SPACES["ffn"] + 1)
    )
    assume(any((1 - tolerance) * target <= size <= target for size in sizes))
    assert in_band(discretised(scores, target, tolerance), target, tolerance)


@given(scores_of_both, st.integers(0, 2), st.integers(0, 6))
def test_open_units_inside_the_band_are_kept_as_they_are(
    scores: dict[str, Tensor], more_heads: int, more_ffn: int
) -> None:
    found = opened(scores)
    target = COST.exact(found) + more_heads * PRICE["heads"] - more_ffn * PRICE["ffn"]
    assume(target > 0)
    edge = abs(COST.exact(found) - target) / target
    assert discretised(scores, target, edge * 1.0001) == found


@given(scores_of_both, targets, tolerances)
def test_filled_up_it_never_exceeds_the_target_and_leaves_no_room_for_a_unit(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    assume(not in_band(opened(scores), target, tolerance))
    assume(target >= NOTHING)
    found = discretised(scores, target, tolerance)
    assert COST.exact(found) <= target
    for layer in found.layers:
        if len(layer.heads) < SPACES["heads"]:
            assert COST.exact(found) + PRICE["heads"] > target
        if len(layer.ffn) < SPACES["ffn"]:
            assert COST.exact(found) + PRICE["ffn"] > target


@given(scores_of_both, targets, tolerances)
def test_of_each_space_the_units_of_highest_score_are_kept(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    found = discretised(scores, target, tolerance)
    for space, units in SPACES.items():
        kept = {(i, unit) for i, layer in enumerate(found.layers) for unit in getattr(layer, space)}
        closed = {(i, unit) for i in range(2) for unit in range(units)} - kept
        worst = min((scores[space][place].item() for place in kept), default=float("inf"))
        best = max((scores[space][place].item() for place in closed), default=-float("inf"))
        assert worst >= best


@given(scores_of_both, targets)
def test_a_space_that_is_not_scored_stays_whole(scores: dict[str, Tensor], target: float) -> None:
    for space, other in (("heads", "ffn"), ("ffn", "heads")):
        found = discretised({space: scores[space]}, target, 0.01)
        assert all(len(getattr(layer, other)) == SPACES[other] for layer in found.layers)


def test_a_target_that_the_searched_space_cannot_reach_closes_all_of_it() -> None:
    scores = {"ffn": torch.ones(2, SPACES["ffn"])}
    found = discretised(scores, 0.01 * COST.full, 0.01)
    assert found.ffn_per_layer == (0, 0)
    assert found.heads_per_layer == (3, 3)

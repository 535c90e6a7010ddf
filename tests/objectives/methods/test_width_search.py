"""The width search: what it owes as a search method, and what TAS says of its parts."""

import itertools
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from objectives.methods.width_search import WidthAlpha, WidthSearch
from objectives.problem import Problem
from objectives.search_method import SearchResult
from objectives.students.bert.architecture import BertArchitecture
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance, run, search_alone
from tests.objectives.planted import holds_the_planted_units, planted_problem

SEARCH = Stage(name="search", epochs=1, searches=True, learning_rate=1e-3)
QUICK = WidthSearch(batch_size=16, tolerance=0.1, stages=(SEARCH, RECOVER))


class TestConformance(PruningConformance):
    quick = QUICK


def fresh(problem: Problem, **fields: Any) -> WidthAlpha:
    return WidthAlpha([replace(QUICK, **fields)], problem, seed=0)


def chosen(alpha: WidthAlpha, choice: tuple[int, ...]) -> dict[str, Tensor]:
    """Alpha all but certain of one candidate of each layer, FFN layers first; float64."""
    values = {space: torch.zeros_like(value[0].double()) for space, value in alpha.alpha.items()}
    for place, candidate in enumerate(choice):
        space = ("ffn", "heads")[place // TINY.layers]
        values[space][place % TINY.layers, candidate] = 60.0
    return values


def test_expected_cost_is_the_cut_models_for_every_choice(problem: Problem) -> None:
    """All 8 x 8 x 8 choices of FFN widths, and of the heads as they come."""
    alpha = fresh(problem)
    head_widths = len(alpha.widths["heads"])
    for ffn in itertools.product(range(8), repeat=3):
        choice = (*ffn, *(candidate % head_widths for candidate in ffn[::-1]))
        values = chosen(alpha, choice)
        expected = problem.budget.cost.expected(
            {s: alpha._survival(s, v.softmax(-1)[None].float()) for s, v in values.items()}
        )
        widths = {s: alpha.widths[s][v.argmax(-1)] for s, v in values.items()}
        masks = {
            s: (torch.arange(int(alpha.widths[s][-1])) < widths[s][:, None]).tolist()
            for s in widths
        }
        exact = problem.budget.cost.exact(BertArchitecture.from_masks(TINY, masks))
        assert expected.item() == pytest.approx(exact, rel=1e-6)


def test_the_gradient_of_the_expected_cost_is_that_of_finite_differences(problem: Problem) -> None:
    alpha = fresh(problem)
    start = torch.randn(1, 3, len(alpha.widths["ffn"]), generator=torch.Generator().manual_seed(0))
    start = start.double().requires_grad_()

    def cost(value: Tensor) -> Tensor:
        return (
            problem.budget.cost.expected({"ffn": alpha._survival("ffn", value.softmax(-1))}) / 1e4
        )

    alpha.widths["ffn"] = alpha.widths["ffn"].double()
    assert torch.autograd.gradcheck(cost, (start,), atol=1e-3)


DEEP = replace(QUICK, spaces=("heads", "ffn", "layers"), shares=(0, 0.34, 0.67, 1))


def test_the_expected_cost_of_a_depth_is_that_of_the_layers_that_are_likely_there(
    problem: Problem,
) -> None:
    """Each layer by the reversed cumulative sum of the depths; exact where one depth is certain."""
    alpha, cost = WidthAlpha([DEEP], problem, seed=0), problem.budget.cost
    assert alpha.widths["layers"].tolist() == [0, 1, 2, 3]
    shares = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    survival = alpha._survival("layers", shares)
    torch.testing.assert_close(survival, torch.tensor([[[0.9, 0.7, 0.4]]]))
    expected = cost.expected({"layers": alpha._of_units("layers", survival)})
    assert expected.item() == pytest.approx(cost.fixed + 2 / 3 * (cost.full - cost.fixed))
    for depth in range(4):
        certain = alpha._survival("layers", torch.eye(4)[depth].expand(1, 1, 4))
        (mask,) = alpha._of_units("layers", certain)
        assert mask.shape == (3, 1)
        assert {int(n) for n in mask[:, 0].nonzero()} == {
            int(n) for n in (alpha.ranks["layers"][0] < depth).nonzero()
        }
        units = BertArchitecture.from_masks(TINY, {"layers": mask.bool().tolist()})
        assert cost.expected({"layers": mask[None]}).item() == cost.exact(units)


def test_a_depth_is_searched_beside_the_widths(problem: Problem) -> None:
    alpha = WidthAlpha([replace(DEEP, target_ratio=0.3, tolerance=0.6)], problem, seed=0)
    masks = alpha.masks(0.5)
    assert masks["layers"].shape == (1, 3, 1)
    assert ((masks["layers"] > 0) & (masks["layers"] < 1)).any()
    with torch.no_grad():
        for space, value in alpha.alpha.items():
            value[..., 2 if space == "layers" else 1] += 20
    found = alpha.architecture(0)
    gone = [n for n, layer in enumerate(found.layers) if layer.dropped]
    assert gone == [int(alpha.ranks["layers"][0].argmax())]
    result = search_alone(replace(DEEP, target_ratio=0.4), problem)
    ratio = problem.budget.ratio(result.architecture)  # type: ignore[arg-type]
    assert abs(ratio - 0.4) <= 0.1 * 0.4


def test_masks_are_two_widths_of_the_best_units(problem: Problem) -> None:
    alpha = fresh(problem)
    for _ in range(5):
        for space, mask in alpha.masks(0.3).items():
            for row, ranks in zip(mask[0], alpha.ranks[space], strict=True):
                by_rank = row[ranks.argsort()]
                assert (by_rank.diff() <= 1e-6).all()
                steps = {int(place) + 1 for place in (by_rank.diff() < -1e-6).nonzero()}
                if by_rank[-1] > 1e-6:
                    steps.add(len(by_rank))
                assert steps <= set(alpha.widths[space].tolist())
                assert len(steps) <= 2
                assert by_rank[0] <= 1 + 1e-6


def test_places_fall_strictly_and_the_likeliest_width_is_above_one(problem: Problem) -> None:
    alpha = fresh(problem)
    values = torch.randn(3, len(alpha.widths["ffn"]), generator=torch.Generator().manual_seed(1))
    positions = alpha.positions("ffn", values.double())
    assert (positions.diff(dim=-1) < 0).all()
    assert (positions > 1).sum(-1).tolist() == alpha.widths["ffn"][values.argmax(-1)].tolist()


def test_the_likeliest_widths_are_cut_if_they_meet_the_budget(problem: Problem) -> None:
    alpha = fresh(problem, shares=(0, 0.25, 0.5, 1), target_ratio=0.4, tolerance=0.5)
    with torch.no_grad():
        for space, value in chosen(alpha, (2, 1, 2, 1, 2, 1)).items():
            alpha.alpha[space][0] = value.float() / 10
    found = alpha.architecture(0)
    assert found.ffn_per_layer == (24, 12, 24)
    assert found.heads_per_layer == (1, 2, 1)
    for ranks, layer in zip(alpha.ranks["heads"], found.layers, strict=True):
        assert {int(ranks[head]) for head in layer.heads} == set(range(len(layer.heads)))


def test_two_widths_padded_with_zeros_are_the_sum_of_two_cut_layers(problem: Problem) -> None:
    """What the output projection gives of the mask is what it gives of each width, weighted."""
    alpha = fresh(problem, shares=(0, 0.25, 0.5, 1))
    weights = torch.zeros(1, 3, 4)
    weights[..., 1], weights[..., 2] = 0.3, 0.7
    mask = alpha._of_units("ffn", alpha._survival("ffn", weights))[0]
    for ranks, row in zip(alpha.ranks["ffn"], mask, strict=True):
        expected = 0.3 * (ranks < 12) + 0.7 * (ranks < 24)
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize(
    "knobs", [{"grad_rescale": 0.5}, {"flops_weight": 0.01}, {"target_ratio": 0.2}], ids=list
)
def test_a_knob_changes_the_way(problem: Problem, knobs: dict[str, Any]) -> None:
    one, other = (search_alone(m, problem) for m in (QUICK, replace(QUICK, **knobs)))
    ways = [[point.get("expected_ratio") for point in way.curve] for way in (one, other)]
    assert ways[0] != ways[1]


def test_the_flops_loss_brings_the_likeliest_widths_to_the_band(problem: Problem) -> None:
    search = replace(SEARCH, epochs=4)
    method = replace(QUICK, target_ratio=0.25, flops_weight=20.0, grad_rescale=0.2)
    result = search_alone(replace(method, stages=(search,)), problem)
    ratios = [float(point["open_ratio"]) for point in result.curve]
    assert abs(median(ratios[-15:]) - 0.25) < 0.1 * 0.25


def test_the_planted_units_survive(problem: Problem) -> None:
    """Of two students in a population; the head is not so loud that it need not be counted on."""
    planted = planted_problem(problem, loudness=2.0)
    method = replace(QUICK, stages=(replace(SEARCH, epochs=3),))
    for result in run([replace(method, target_ratio=ratio) for ratio in (0.15, 0.3)], planted):
        assert isinstance(result, SearchResult)
        assert min(float(point["open_ratio"]) for point in result.curve) < 0.5
        assert holds_the_planted_units(result.architecture)

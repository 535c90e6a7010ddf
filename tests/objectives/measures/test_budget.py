"""The hinge steers into the band, the discretisation ends in it."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from objectives.measures.budget import discretise, hinge_loss, scheduled_ratio
from objectives.measures.cost import Cost, Flops, Params, Units
from objectives.students.bert.architecture import BertArchitecture, BertShape, LayerUnits, units_of
from tests.objectives.hypothesis_strategies import COMBINATIONS, EACH_COMBINATION, masks_of

COST = Flops(BertShape(layers=2, hidden=8, heads=3, head_dim=4, ffn=6, labels=2), seq_len=5)
SPACES = {"heads": 3, "ffn": 6}
PRICE = COST.of_one_unit()
NOTHING = COST.exact(BertArchitecture((LayerUnits((), ()),) * 2))


def hinge(expected: float, actual: float, *, one_sided: bool = False) -> Tensor:
    """Of a target of 100 with a tolerance of a quarter."""
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (expected, actual))
    return hinge_loss(*numbers, torch.tensor([100.0]), torch.tensor([0.25]), one_sided=one_sided)


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


numbers = st.floats(-10, 10, width=32)
scores_of_both = st.fixed_dictionaries(
    {
        space: arrays("float32", (2, units), elements=numbers).map(torch.from_numpy)
        for space, units in SPACES.items()
    }
)
targets = st.floats(1.0, 1.1 * COST.full)
tolerances = st.floats(0, 0.5)


def opened(scores: dict[str, Tensor]) -> BertArchitecture:
    masks = {space: (score > 0).tolist() for space, score in scores.items()}
    return BertArchitecture.from_masks(COST.shape, masks)


def in_band(architecture: BertArchitecture, target: float, tolerance: float) -> bool:
    return abs(COST.exact(architecture) - target) <= tolerance * target


def discretised(scores: dict[str, Tensor], target: float, tolerance: float) -> BertArchitecture:
    return discretise(scores, COST, target=target, tolerance=tolerance, threshold=0.0)


def test_a_one_sided_hinge_ends_at_the_target() -> None:
    assert hinge(300.0, 110.0) == hinge(300.0, 100.0, one_sided=True) == 0
    assert hinge(300.0, 110.0, one_sided=True) > 0
    assert hinge(300.0, 70.0, one_sided=True) == hinge(300.0, 70.0) < 0


def test_every_schedule_falls_from_one_to_the_ratio() -> None:
    ratio = torch.tensor([0.25, 1.0])
    half = {"geometric": 0.5, "linear": 0.625, "cubic": 0.34375, "constant": 0.25}
    for schedule, middle in half.items():
        ratios = [scheduled_ratio(ratio, p, 0.8, schedule) for p in (0.0, 0.4, 0.8, 1.0)]  # type: ignore[arg-type]
        start = 0.25 if schedule == "constant" else 1.0
        assert [r[0].item() for r in ratios] == pytest.approx([start, middle, 0.25, 0.25])
        assert all(r[1].item() == 1 for r in ratios)


def test_a_student_that_is_smaller_than_the_teacher_starts_at_its_own_size() -> None:
    ratio = torch.tensor([0.1])
    for schedule, half in (("geometric", 0.2), ("linear", 0.25), ("cubic", 0.1375)):
        rows = [scheduled_ratio(ratio, p, 1.0, schedule, whole=0.4) for p in (0.0, 0.5, 1.0)]  # type: ignore[arg-type]
        assert [row.item() for row in rows] == pytest.approx([0.4, half, 0.1])


@given(scores_of_both, targets, tolerances)
def test_the_budget_is_met_wherever_some_choice_of_units_meets_it(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    sizes = (
        NOTHING + heads * PRICE["heads"] + ffn * PRICE["ffn"]
        for heads in range(2 * SPACES["heads"] + 1)
        for ffn in range(2 * SPACES["ffn"] + 1)
    )
    assume(any((1 - tolerance) * target <= size <= (1 + tolerance) * target for size in sizes))
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
def test_filled_up_it_leaves_no_room_for_a_unit_and_exceeds_the_target_in_the_band_only(
    scores: dict[str, Tensor], target: float, tolerance: float
) -> None:
    assume(not in_band(opened(scores), target, tolerance))
    assume(target >= NOTHING)
    found = discretised(scores, target, tolerance)
    assert COST.exact(found) <= target or in_band(found, target, tolerance)
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


# Every space: the price of a unit depends on what else is kept.

SMALL = BertShape(layers=2, hidden=6, heads=2, head_dim=3, ffn=5, labels=2)
FLOPS = Flops(SMALL, 4)
COMBINED = [spaces for spaces in COMBINATIONS if len(spaces) > 1]


def drawn_scores(spaces: Sequence[str], seed: int) -> dict[str, Tensor]:
    """Normal scores: no two are equal."""
    generator = torch.Generator().manual_seed(seed)
    return {
        space: torch.randn(SMALL.layers, *units_of(SMALL, space), generator=generator)
        for space in spaces
    }


def every_choice(scores: dict[str, Tensor], pair: tuple[str, str]) -> Iterator[BertArchitecture]:
    """Every number of the best units of one kind beside every number of those of the other."""
    orders = {}
    for space in pair:
        score = scores[space].double()
        if space in ("qk", "v"):
            score = score.sort(-1, descending=True).values.mean(1)
        orders[space] = score.flatten(1)
    for numbers in product(*(range(order.numel() + 1) for order in orders.values())):
        masks = {}
        for number, (space, order) in zip(numbers, orders.items(), strict=True):
            kept = torch.zeros(order.numel(), dtype=torch.int64)
            kept[order.flatten().argsort(descending=True)[:number]] = 1
            counts = kept.view(order.shape).sum(-1)
            if space not in ("heads", "ffn"):
                counts = counts.clamp_min(1)
            ranks = (-scores[space]).argsort(-1).argsort(-1)
            masks[space] = (ranks < counts.view(-1, *(1,) * (ranks.ndim - 1))).tolist()
        yield BertArchitecture.from_masks(SMALL, masks)


def sets_of(layer: LayerUnits) -> dict[str, Sequence[Sequence[int]]]:
    """What a layer keeps in each space, one row for each set that is ranked by itself."""
    whole, every = tuple(range(SMALL.head_dim)), tuple(range(SMALL.hidden))
    inputs = (layer.query_inputs, layer.key_inputs, layer.value_inputs)
    rows = [every if kept is None else kept for kept in inputs]
    return {
        "heads": [layer.heads],
        "ffn": [layer.ffn],
        "qk": layer.query_key or [whole] * len(layer.heads),
        "v": layer.value or [whole] * len(layer.heads),
        "input": rows[:1],
        "input_qkv": rows,
    }


def costs(spaces: tuple[str, ...]) -> st.SearchStrategy[Cost]:
    return st.sampled_from(
        [FLOPS, Params(SMALL, embeddings=50, vocabulary=0), Units(SMALL, spaces)]
    )


seeds = st.integers(0, 2**16)
shares = st.floats(0.01, 1.1)


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=10)
@given(data=st.data(), seed=seeds, share=shares, tolerance=st.floats(0, 0.3))
def test_what_is_found_is_an_architecture_that_keeps_the_best_of_each_set(
    data: st.DataObject, seed: int, share: float, tolerance: float, spaces: tuple[str, ...]
) -> None:
    scores, cost = drawn_scores(spaces, seed), data.draw(costs(spaces))
    found = discretise(scores, cost, target=share * cost.full, tolerance=tolerance, threshold=0)
    found.check(SMALL)
    for number, layer in enumerate(found.layers):
        if not layer.heads:
            continue
        for space, sets in sets_of(layer).items():
            if space in ("input", "input_qkv") and not {"input", "input_qkv"} & set(spaces):
                assert [len(row) for row in sets_of(layer)["input_qkv"]] == [SMALL.hidden] * 3
            elif space in scores:
                own = scores[space][number]
                rows = (
                    own[list(layer.heads)] if space in ("qk", "v") else own.view(-1, own.shape[-1])
                )
                for kept, row in zip(sets, rows, strict=True):
                    assert set(row.topk(len(kept)).indices.tolist()) == set(kept)
        if "input" in scores:
            assert layer.query_inputs == layer.key_inputs == layer.value_inputs


@pytest.mark.parametrize("spaces", COMBINED, ids="+".join)
@settings(max_examples=15)
@given(data=st.data(), seed=seeds, share=shares)
def test_the_budget_is_met_between_the_smallest_and_the_full_model(
    data: st.DataObject, seed: int, share: float, spaces: tuple[str, ...]
) -> None:
    """Wherever half the band is as wide as the dearest step, which is one of a full layer."""
    scores, cost = drawn_scores(spaces, seed), data.draw(costs(spaces))
    target = share * cost.full
    smallest = discretise(scores, cost, target=0.0, tolerance=0.0, threshold=99.0)
    assume(cost.exact(smallest) <= target <= cost.full)
    price = cost.of_one_unit()
    dearest = max(price[space] * (SMALL.heads if space in ("qk", "v") else 1) for space in spaces)
    if "heads" in spaces:  # the first head of a layer brings all that is open with it
        no_head, *others = (LayerUnits((), tuple(range(SMALL.ffn))),) * SMALL.layers
        one_head = LayerUnits((0,), no_head.ffn)
        first, none = (
            cost.exact(BertArchitecture((layer, *others))) for layer in (one_head, no_head)
        )
        dearest = max(dearest, first - none)
    found = discretise(scores, cost, target=target, tolerance=dearest / target, threshold=0.0)
    assert abs(cost.exact(found) - target) <= dearest * (1 + 1e-12)


@settings(max_examples=60)
@given(
    seed=seeds,
    share=st.floats(0.05, 1.0),
    tolerance=st.floats(0, 0.02),
    off=st.floats(-0.9, 0.9),
    pair=st.sampled_from([("ffn", "qk"), ("ffn", "v"), ("ffn", "input"), ("heads", "ffn")]),
)
def test_with_neurons_and_one_more_kind_the_band_is_met_wherever_best_units_meet_it(
    seed: int, share: float, tolerance: float, off: float, pair: tuple[str, str]
) -> None:
    """Brute force over how many steps of each kind are taken, the best of all layers first.

    In these pairs a step costs the same whatever else is kept. Of all bands those are drawn in
    which some choice is, `off` their middle.
    """
    cost, scores = FLOPS, drawn_scores(pair, seed)
    reached = [cost.exact(architecture) for architecture in every_choice(scores, pair)]
    nearest = min(reached, key=lambda price: abs(price - share * cost.full))
    target = nearest * (1 + off * tolerance)
    assume(abs(nearest - target) <= tolerance * target)  # but for rounding
    found = discretise(scores, cost, target=target, tolerance=tolerance, threshold=0.0)
    assert abs(cost.exact(found) - target) <= tolerance * target


@given(seed=seeds, share=shares)
def test_a_permutation_of_units_permutes_what_is_kept(seed: int, share: float) -> None:
    spaces = ("heads", "ffn", "qk", "v", "input_qkv")
    scores = drawn_scores(spaces, seed)
    generator = torch.Generator().manual_seed(seed)
    cost = FLOPS
    heads, ffn, inputs = (
        torch.randperm(size, generator=generator) for size in (SMALL.heads, SMALL.ffn, SMALL.hidden)
    )
    permuted = {
        "heads": scores["heads"][:, heads],
        "ffn": scores["ffn"][:, ffn],
        "qk": scores["qk"][:, heads],
        "v": scores["v"][:, heads],
        "input_qkv": scores["input_qkv"][..., inputs],
    }
    one, other = (
        discretise(s, cost, target=share * cost.full, tolerance=0.05, threshold=0.0)
        for s in (scores, permuted)
    )
    one_masks, other_masks = (masks_of(found, SMALL, spaces) for found in (one, other))
    assert torch.equal(one_masks["heads"][..., heads], other_masks["heads"])
    assert torch.equal(one_masks["ffn"][..., ffn], other_masks["ffn"])
    assert torch.equal(one_masks["qk"][:, :, heads], other_masks["qk"])
    assert torch.equal(one_masks["v"][:, :, heads], other_masks["v"])
    assert torch.equal(one_masks["input_qkv"][..., inputs], other_masks["input_qkv"])


def test_open_steps_inside_the_band_are_kept_as_they_are() -> None:
    scores = {space: torch.full((2, *units_of(SMALL, space)), -1.0) for space in ("heads", "qk")}
    scores["heads"][:, 1] = 1
    scores["qk"][:, :, 2] = 1
    scores["qk"][0, 0, 1] = 9  # of one head alone: the mean of the second step counts
    cost = FLOPS
    layers = (
        LayerUnits((1,), tuple(range(5)), query_key=((0, 2),)),
        LayerUnits((1,), tuple(range(5)), query_key=((2,),)),
    )
    target = cost.exact(BertArchitecture(layers))
    found = discretise(scores, cost, target=target, tolerance=0.0, threshold=0.0)
    assert found == BertArchitecture(layers)


def test_a_head_is_priced_with_the_dimensions_that_are_open_in_its_layer() -> None:
    """The best units come first; what no head of a layer uses is dropped."""
    cost = FLOPS
    scores = {space: torch.zeros(2, *units_of(SMALL, space)) for space in ("heads", "qk", "v")}
    scores["qk"] += torch.tensor([9.0, 8.0, 7.0])
    scores["v"] += torch.tensor([9.0, 8.0, 7.0])
    scores["heads"] += torch.tensor([[6.0, 5.0], [4.0, 3.0]])
    whole = tuple(range(SMALL.ffn))
    one_head = BertArchitecture((LayerUnits((0,), whole), LayerUnits((), whole)))
    found = discretise(scores, cost, target=cost.exact(one_head), tolerance=0.0, threshold=99.0)
    assert found == one_head


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("share", "tolerance"), [(0.25, 1e-4), (0.5, 0.0)])
def test_bert_base_with_every_space_ends_on_the_budget(share: float, tolerance: float) -> None:
    shape = BertShape(layers=12, hidden=768, heads=12, head_dim=64, ffn=3072, labels=2)
    generator = torch.Generator().manual_seed(0)
    scores = {
        space: torch.randn(12, *units_of(shape, space), generator=generator)
        for space in ("heads", "ffn", "qk", "v", "input_qkv")
    }
    cost = Flops(shape, 128)
    target = share * cost.full
    found = discretise(scores, cost, target=target, tolerance=tolerance, threshold=0.0)
    assert abs(cost.exact(found) / target - 1) <= 1e-4


@pytest.mark.parametrize(("fixed", "share"), [(True, 1.0), (False, 0.9)])
def test_beside_layers_the_band_is_met_where_heads_and_neurons_meet_it(
    fixed: bool, share: float
) -> None:
    """`fixed`: which layers stay is said, as a depth of `ElasticSearch` does. Where layers are
    chosen by their scores this small model misses some."""
    generator = torch.Generator().manual_seed(0)
    met = []
    for _ in range(100):
        scores = {
            name: torch.randn(2, units, generator=generator) for name, units in SPACES.items()
        }
        target = COST.full * (0.2 + 0.7 * torch.rand(1, generator=generator).item())
        layers = torch.randn(2, 1, generator=generator)
        if fixed:
            layers = torch.full((2, 1), torch.inf)
        if in_band(discretised(scores, target, 0.02), target, 0.02):
            found = discretised({**scores, "layers": layers}, target, 0.02)
            met.append(in_band(found, target, 0.02))
    assert len(met) > 30
    assert sum(met) >= share * len(met)


def test_expected_with_layers_alone_stays_on_its_device() -> None:
    masks = {"layers": torch.ones(2, 2, 1, device="meta")}
    assert COST.expected(masks).device.type == "meta"


def test_units_that_are_fixed_are_kept_or_closed_whatever_the_budget() -> None:
    """Here the budget would hold all heads and no neuron, or half of both."""
    heads = torch.full((2, SPACES["heads"]), -torch.inf)
    heads[:, 0] = torch.inf
    scores = {"heads": heads, "ffn": torch.rand(2, SPACES["ffn"])}
    for ratio in (0.05, 0.5, 1.0):
        found = discretised(scores, ratio * COST.full, 0.01)
        assert [layer.heads for layer in found.layers] == [(0,), (0,)]
    assert found.ffn_per_layer == (SPACES["ffn"],) * 2


def test_without_a_threshold_the_budget_is_filled_although_nothing_lies_in_the_band() -> None:
    cost = Params(SMALL, embeddings=5000, vocabulary=0)
    scores = drawn_scores(("heads", "ffn"), 0)
    found = discretise(scores, cost, target=cost.full, tolerance=0.3, threshold=torch.inf)
    assert cost.exact(found) == cost.full

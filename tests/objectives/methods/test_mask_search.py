"""The mask search: what it owes as a search method, and what its own settings do."""

import copy
import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from objectives.errors import UserError
from objectives.measures.evaluate import predict
from objectives.methods.mask_search import PRESETS, GradientAlpha, MaskSearch
from objectives.problem import Problem
from objectives.search_method import SearchFailure, SearchResult
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.text.data import Batch
from objectives.training.population import Population
from objectives.training.stage_training import Masks, StageTraining
from objectives.training.stages import Stage
from objectives.workbench.workbench import Workbench
from tests.conftest import TINY
from tests.objectives.conformance import (
    RECOVER,
    OnMpnet,
    PruningConformance,
    assert_same,
    counted_flops,
    run,
    search_alone,
    training_of,
)
from tests.objectives.planted import PLANTED, holds_the_planted_units, planted_problem

SEARCH = Stage(name="search", epochs=1, searches=True, learning_rate=1e-3)
QUICK = MaskSearch(batch_size=16, tolerance=0.1, stages=(SEARCH, RECOVER))


class TestConformance(PruningConformance):
    quick = QUICK


@pytest.mark.slow
class TestConformanceOfMpnet(OnMpnet, TestConformance):
    pass


def preset(name: str, **changes: Any) -> MaskSearch:
    """A quick search with the fields of a preset."""
    return MaskSearch.preset(
        name, **{"batch_size": 16, "tolerance": 0.1, "stages": (SEARCH, RECOVER), **changes}
    )


@pytest.mark.slow
class TestConformanceOfSeed(PruningConformance):
    quick = preset("seed")


@pytest.mark.slow
class TestConformanceOfDap(PruningConformance):
    quick = preset("dap")


@pytest.mark.slow
class TestConformanceOfAnneal(PruningConformance):
    quick = preset("anneal")


def measured(result: SearchResult, name: str) -> list[float]:
    """One column of the search stage of the learning curve."""
    return [float(point[name]) for point in result.curve if point["stage"] == "search"]


@pytest.mark.parametrize(
    "knobs",
    [
        {"grad_rescale": 0.5},
        {"flops_weight": 0.01},
        {"target_ratio": 0.6},
        {"start": "uniform"},
    ],
    ids=lambda knobs: next(iter(knobs)),
)
def test_a_knob_changes_the_way_and_the_outcome(problem: Problem, knobs: dict[str, Any]) -> None:
    one, other = (search_alone(m, problem) for m in (QUICK, replace(QUICK, **knobs)))
    assert measured(one, "expected_ratio") != measured(other, "expected_ratio")
    assert one.architecture != other.architecture


@pytest.mark.parametrize("name", PRESETS)
def test_kappa_changes_the_way_of_every_preset(problem: Problem, name: str) -> None:
    one, other = (
        search_alone(preset(name, grad_rescale=kappa * preset(name).grad_rescale), problem)
        for kappa in (1, 4)
    )
    assert measured(one, "expected_ratio") != measured(other, "expected_ratio")


@pytest.mark.parametrize("name", PRESETS)
def test_lambda_changes_the_way_unless_signs_lose_it(problem: Problem, name: str) -> None:
    one, other = (
        search_alone(preset(name, flops_weight=weight), problem) for weight in (1e-6, 1e6)
    )
    same = measured(one, "expected_ratio") == measured(other, "expected_ratio")
    assert same == (preset(name).alpha_optimizer == "sign")


def test_a_uniform_start_has_a_value_for_every_unit_of_its_spaces(problem: Problem) -> None:
    method = replace(QUICK, start="uniform", initial_alpha=4.0, spaces=("ffn",))
    alpha = GradientAlpha([method], problem, seed=0).alpha
    assert alpha.keys() == {"ffn"}
    assert torch.equal(alpha["ffn"], torch.full((1, 3, 48), 4.0))
    other = replace(method, spaces=("qk", "input_qkv"))
    assert GradientAlpha([other], problem, seed=0).alpha["qk"].shape == (1, 3, 4, 8)


def test_the_temperature_falls_by_a_constant_factor(problem: Problem) -> None:
    method = replace(QUICK, start="uniform", initial_alpha=-0.1, temperature=(1.0, 0.01))
    alpha = GradientAlpha([method], problem, seed=0)
    shifts = [alpha.masks(progress)["ffn"].logit().mean().item() for progress in (0, 0.5, 1)]
    assert shifts == pytest.approx([-0.1, -1, -10], rel=1e-3)


def test_alpha_of_dap_moves_on_the_integers(problem: Problem) -> None:
    alpha = GradientAlpha([preset("dap")], problem, seed=0)
    training = training_of(problem)
    for step, batch in enumerate(islice(problem.train.shuffled(16, 0, "cpu"), 5)):
        masks = alpha.masks(step / 5)
        training.loss(training.population, batch, masks).sum().backward()
        alpha.learn(training, masks, step / 5)
    values = torch.cat([value.detach().flatten() for value in alpha.alpha.values()])
    assert set(values.tolist()) > {5.0}
    assert (values == values.round()).all()


@pytest.mark.parametrize(("heads_kept", "expected"), [(3, 3), (None, 2)])
def test_heads_by_softmax_keep_as_many_in_every_layer(
    problem: Problem, heads_kept: int | None, expected: int
) -> None:
    method = replace(QUICK, heads_by="softmax", heads_kept=heads_kept, start="uniform")
    found = search_alone(method, problem).architecture
    assert found.heads_per_layer == (expected,) * 3
    assert abs(problem.budget.ratio(found) - 0.5) <= 0.1 * 0.5


def test_heads_by_softmax_are_shares_begun_near_equal(problem: Problem) -> None:
    """Eq. (5) of the source report: a softmax without a factor, alpha from N(0, 0.01)."""
    members = [replace(QUICK, heads_by="softmax")] * 2
    alpha = GradientAlpha(members, problem, seed=0)
    masks = alpha.masks(0.0)["heads"]
    assert torch.equal(masks[0], masks[1])
    assert masks.sum(-1).flatten().tolist() == pytest.approx([1.0] * masks[..., 0].numel())
    assert 0 < alpha.alpha["heads"].std() < 0.05


@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("qk", "v"), ("input",)])
def test_by_threshold_all_masks_above_it_stay_whatever_they_cost(
    problem: Problem, spaces: tuple[str, ...]
) -> None:
    method = MaskSearch(
        spaces=spaces,
        discretise="threshold",
        threshold=0.01,
        tolerance=0.0,
        target_ratio=0.5,
        start="uniform",
        temperature=(1.0, 1.0),
        stages=(replace(SEARCH, epochs=0.1),),
        batch_size=16,
    )
    found = search_alone(method, problem)  # so short a search closes nothing
    assert found.architecture == BertArchitecture.full(problem.shape)
    assert (found.target_ratio, measured(found, "open_ratio")[-1]) == pytest.approx((1.0, 1.0))
    raised = search_alone(replace(method, threshold=1 - 1e-5), problem)
    assert problem.budget.ratio(raised.architecture) < 0.9


def test_flops_do_not_move_heads_by_softmax(problem: Problem) -> None:
    method = replace(QUICK, heads_by="softmax", spaces=("heads",), start="uniform")
    ways = [
        measured(search_alone(replace(method, flops_weight=weight), problem), "alpha_loss")
        for weight in (0.0, 10.0)
    ]
    assert ways[0] == ways[1]


def test_heads_by_softmax_count_as_many_as_are_kept(problem: Problem) -> None:
    method = replace(QUICK, heads_by="softmax", heads_kept=2, spaces=("heads",), start="uniform")
    found = search_alone(method, problem)
    ratio = problem.budget.ratio(found.architecture)
    for column in ("expected_ratio", "open_ratio"):
        assert measured(found, column) == pytest.approx([ratio] * len(measured(found, column)))


@pytest.mark.parametrize("data", ["alpha", "train"])
@pytest.mark.parametrize("loss", ["labels", "teacher"])
def test_alpha_learns_what_it_is_told_from(problem: Problem, data: Any, loss: Any) -> None:
    """Labels turned round in a split change its way only if it learns from these labels. The
    weights learn from none: where alpha does not either, the model is the same."""
    method = replace(QUICK, alpha_data=data, alpha_loss=loss, start="uniform", grad_rescale=0.5)
    found = search_alone(method, problem)
    for role, split in (("train", problem.train), ("alpha", problem.alpha)):
        turned = replace(problem, **{role: replace(split, labels=(split.labels + 1) % 3)})
        other = search_alone(method, turned)
        same = measured(found, "expected_ratio") == measured(other, "expected_ratio")
        assert same == (loss == "teacher" or role != data), role
        if same:
            assert_same(found, other, problem)


def test_alpha_does_not_learn_from_the_batch_that_the_weights_just_took(problem: Problem) -> None:
    """Beside the labels of train: DARTS wants other data, and the same rows would be none."""
    alpha = GradientAlpha([replace(QUICK, alpha_data="train")], problem, seed=3)
    own = [batch.rows.tolist() for batch in islice(alpha.batches, 30)]
    assert sorted(row for rows in own[:15] for row in rows) == list(range(len(problem.train)))
    for stage in range(3):
        weights = islice(problem.train.shuffled(16, 3 + stage, "cpu"), 30)
        both = zip(own, weights, strict=True)
        assert not any(sorted(rows) == sorted(batch.rows.tolist()) for rows, batch in both)


def half_open(problem: Problem, seed: int, **changes: Any) -> float:
    """The share of masks in (0.01, 0.99) when alpha has learnt for 100 steps; the weights rest."""
    method = MaskSearch.preset("anneal", batch_size=16, grad_rescale=0.3, **changes)
    alpha, training, steps = GradientAlpha([method], problem, seed), training_of(problem), 100
    for step in range(steps):
        alpha.learn(training, alpha.masks(step / steps), step / steps)
    masks = torch.cat([mask.detach().flatten() for mask in alpha.masks(1.0).values()])
    return ((masks > 0.01) & (masks < 0.99)).double().mean().item()


def test_masks_end_at_0_or_1_if_the_temperature_falls_and_only_then(problem: Problem) -> None:
    """In ten seeds at most 0.6% were still half open, and without that at least 87%."""
    assert half_open(problem, seed=0) < 0.05
    assert half_open(problem, seed=0, temperature=(1.0, 1.0)) > 0.5


@pytest.mark.parametrize(("progress", "temperature"), [(0.0, 2.0), (0.5, 0.5), (1.0, 0.125)])
def test_masks_have_the_slope_of_the_temperature_of_the_moment(
    problem: Problem, progress: float, temperature: float
) -> None:
    method = replace(
        QUICK, spaces=("ffn",), temperature=(2.0, 0.125), initial_alpha=0.3, spread=2.0
    )
    alpha = GradientAlpha([method], problem, seed=7)
    value = alpha.alpha["ffn"]
    mask = alpha.masks(progress)["ffn"]
    (slope,) = torch.autograd.grad(mask.sum(), value)
    soft = 1 / (1 + torch.exp(-value.detach()[0] / temperature))
    torch.testing.assert_close(slope[0], soft * (1 - soft) / temperature, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mask.detach()[0], soft)


def test_weights_train_under_the_masks(problem: Problem) -> None:
    """The first loss of a search is that of the masked student, which is worse than the whole."""
    method = replace(QUICK, initial_alpha=-2.0, spread=1.0)
    first = measured(search_alone(method, problem), "loss")[0]
    batch = next(problem.train.shuffled(16, 3, "cpu"))
    student = Population.of([problem.student])
    masks = GradientAlpha([method], problem, seed=3).masks(0.0)
    wanted = problem.teacher_logits[batch.rows].softmax(-1)
    masked, whole = (
        -(wanted * student.logits(batch, m)[0].log_softmax(-1)).sum(-1).mean().item()
        for m in (masks, {})
    )
    assert masked > whole + 0.1
    assert first == pytest.approx(masked, rel=1e-4)


def test_all_steps_of_a_search_are_masked_and_send_alpha_nothing(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, Masks]] = []
    step = StageTraining.step

    def watched(self: StageTraining, batch: Batch, masks: Masks) -> Tensor:
        given.append((self.stage.name, masks))
        return step(self, batch, masks)

    monkeypatch.setattr(StageTraining, "step", watched)
    search_alone(QUICK, problem)
    masks_of_search = [masks for stage, masks in given if stage == "search"]
    assert len(masks_of_search) == 15
    for masks in masks_of_search:
        assert masks.keys() == {"heads", "ffn"}
        assert any((mask < 1).any() for mask in masks.values())
        assert not any(mask.requires_grad for mask in masks.values())
    assert all(masks == {} for stage, masks in given if stage == "recover")


def test_alpha_asks_the_teacher_about_its_own_rows(problem: Problem) -> None:
    """The loss by hand; and a teacher who answers otherwise on them, not on train."""
    method = replace(QUICK, alpha_loss="teacher", start="uniform", grad_rescale=0.5)
    alpha, training = GradientAlpha([method], problem, seed=5), training_of(problem)
    masks = alpha.masks(0.0)
    found = alpha.learn(training, masks, 0.0)["alpha_loss"].item()
    batch = next(problem.alpha.shuffled(16, 5, "cpu"))
    with torch.no_grad():
        answers = problem.teacher(**batch.inputs).logits
        own = training.population.logits(batch, masks)[0]
    by_hand = -(answers.softmax(-1) * own.log_softmax(-1)).sum(-1).mean().item()
    assert found == pytest.approx(by_hand, rel=1e-4)

    turned = copy.deepcopy(problem.teacher)
    with torch.no_grad():
        turned.classifier.weight.copy_(turned.classifier.weight.roll(1, 0))
        turned.classifier.bias.copy_(turned.classifier.bias.roll(1, 0))
    way, other = (
        measured(search_alone(method, p), "expected_ratio")
        for p in (
            problem,
            replace(problem, alpha_logits=predict(turned, problem.alpha, "cpu")),
        )
    )
    assert way != other


def test_there_is_no_other_preset() -> None:
    with pytest.raises(UserError, match="no preset 'cofi'; there are seed, dap, anneal"):
        MaskSearch.preset("cofi")


BY_HAND: dict[str, tuple[Any, Any, Any]] = {
    "threshold": (0.01, 0.99, 0.5),
    "discretise": ("threshold", "budget", "budget"),
    "hinge_on": ("discrete", "expected", "discrete"),
    "one_sided": (False, True, False),
    "tolerance": (0.05, 0.01, 0.05),
    "target_schedule": ("constant", "geometric", "geometric"),
    "ramp": (1.0, 1.0, 0.8),
    "alpha_optimizer": ("adam", "sign", "adam"),
    "update_share": (1.0, 0.1, 1.0),
    "grad_rescale": (0.1, 1.0, 0.1),
    "temperature": ((1.0, 1.0), (1.0, 1.0), (1.0, 0.1)),
    "alpha_loss": ("labels", "teacher", "labels"),
    "alpha_data": ("alpha", "train", "alpha"),
    "heads_by": ("softmax", "sigmoid", "sigmoid"),
    "start": ("uniform",) * 3,
    "initial_alpha": (5.0,) * 3,
    "flops_weight": (1.0,) * 3,
    "heads_kept": (None,) * 3,
}
"""Fields of the presets, written down a second time: those of the report ("seed"), of the
follow-up's code ("dap"), and ours ("anneal")."""


@pytest.mark.parametrize(("column", "name"), [(0, "seed"), (1, "dap"), (2, "anneal")])
def test_a_preset_is_what_its_source_says(column: int, name: str) -> None:
    method = MaskSearch.preset(name)
    wanted = {field: values[column] for field, values in BY_HAND.items()}
    assert {field: getattr(method, field) for field in BY_HAND} == wanted


def test_without_a_flops_weight_units_without_effect_stay_open(problem: Problem) -> None:
    """The weights stand still; the task may move the planted units, and no other."""
    planted, price = planted_problem(problem), problem.budget.cost.of_one_unit()
    others = 1 - (price["heads"] + 3 * price["ffn"]) / problem.budget.full
    still = replace(SEARCH, learning_rate=1e-9, epochs=2)
    free = replace(QUICK, start="uniform", grad_rescale=0.5, flops_weight=0.0, stages=(still,))
    weighted = replace(free, flops_weight=1.0)
    assert min(measured(search_alone(free, planted), "open_ratio")) >= others
    assert min(measured(search_alone(weighted, planted), "open_ratio")) < 0.7


def test_the_target_falls_from_the_full_model_to_the_ratio(problem: Problem) -> None:
    scheduled = measured(search_alone(QUICK, problem), "scheduled_ratio")
    assert scheduled[0] == 1
    assert scheduled == sorted(scheduled, reverse=True)
    assert scheduled[-1] == pytest.approx(QUICK.target_ratio)


def by_hand(problem: Problem, method: MaskSearch, mask: float) -> GradientAlpha:
    """Alpha of FFN neurons, at the end of a search: every second one has this mask."""
    alpha = GradientAlpha([replace(method, spaces=("ffn",))], problem, seed=0)
    alpha.alpha["ffn"].data[..., ::2] = method.temperature[1] * math.log(mask / (1 - mask))
    return alpha


def half_of_the_neurons(problem: Problem) -> BertArchitecture:
    shape = problem.shape
    odd = [n % 2 == 1 for n in range(shape.ffn)]
    return BertArchitecture.from_masks(shape, {"ffn": [odd] * shape.layers})


@pytest.mark.parametrize(
    ("name", "mask", "opened"),
    [
        ("seed", 0.3, True),
        ("anneal", 0.3, False),
        ("dap", 0.3, False),
        ("seed", 0.9, True),
        ("anneal", 0.9, True),
        ("dap", 0.9, False),
        ("seed", 0.001, False),
    ],
)
def test_a_preset_has_its_own_threshold_on_the_way_and_at_the_cut(
    problem: Problem, name: str, mask: float, opened: bool
) -> None:
    method = MaskSearch.preset(name, target_ratio=0.8, tolerance=0.5)
    half = half_of_the_neurons(problem)
    expected = BertArchitecture.full(problem.shape) if opened else half
    assert 0.4 < problem.budget.ratio(half) < 0.9
    alpha = by_hand(problem, method, mask)
    assert alpha.architecture(0) == expected, "both lie in the band"
    _, ratios = alpha._flops_gradients(progress=1.0)
    assert ratios["open_ratio"].item() == pytest.approx(problem.budget.ratio(expected))


@pytest.mark.parametrize(("name", "sign"), [("seed", 1), ("anneal", -1), ("dap", 1)])
def test_a_preset_looks_at_the_open_units_or_at_the_soft_masks(
    problem: Problem, name: str, sign: int
) -> None:
    """At a mask of 0.3 (0.9 for dap's threshold) the soft masks lie above the target. So do the
    open units of "seed"; those of "anneal" and "dap" lie below, but "dap" does not look at them."""
    method = MaskSearch.preset(name, tolerance=0.01)
    alpha = by_hand(problem, method, 0.9 if name == "dap" else 0.3)
    half = problem.budget.cost.exact(half_of_the_neurons(problem))
    expected = problem.budget.cost.expected(alpha.masks(1.0)).item()
    assert half < expected
    alpha.target_ratio = torch.tensor([(half + expected) / 2 / problem.budget.full])
    gradients, _ = alpha._flops_gradients(progress=1.0)
    assert gradients["ffn"][..., ::2].sign().unique().tolist() == [sign]


@pytest.mark.parametrize(("name", "pushes"), [("seed", False), ("anneal", False), ("dap", True)])
def test_a_preset_is_content_inside_its_band(problem: Problem, name: str, pushes: bool) -> None:
    """The target is 4% below what is open: in the band of two sides, above that of one."""
    alpha = by_hand(problem, MaskSearch.preset(name, tolerance=0.05), 0.9)
    looked_at = "expected_ratio" if name == "dap" else "open_ratio"
    _, ratios = alpha._flops_gradients(progress=1.0)
    alpha.target_ratio = ratios[looked_at] / 1.04
    gradients, _ = alpha._flops_gradients(progress=1.0)
    assert gradients["ffn"].any().item() == pushes


@pytest.mark.parametrize(("name", "share"), [("seed", 1.0), ("anneal", 0.5 / 0.8), ("dap", 0.5)])
def test_half_way_a_preset_has_lowered_its_target_so_far(
    problem: Problem, name: str, share: float
) -> None:
    alpha = by_hand(problem, MaskSearch.preset(name, target_ratio=0.25), 0.9)
    _, ratios = alpha._flops_gradients(progress=0.5)
    assert ratios["scheduled_ratio"].item() == pytest.approx(0.25**share)


def test_a_student_with_fewer_layers_than_the_teacher_is_searched_from_its_own_size(
    problem: Problem,
) -> None:
    """The teacher has three times the FLOPs; above the student's own there is nothing to cut."""
    large = replace(problem, budget=replace(problem.budget, full=3 * problem.budget.full))
    stage = replace(SEARCH, epochs=3)
    method = replace(QUICK, start="uniform", target_ratio=0.15, grad_rescale=0.3, stages=(stage,))
    found = search_alone(method, large)
    assert measured(found, "scheduled_ratio")[0] == pytest.approx(1 / 3)
    assert measured(found, "open_ratio")[-1] < 0.2


@pytest.mark.parametrize("inputs", ["input", "input_qkv"])
def test_all_spaces_are_searched_at_once(problem: Problem, inputs: str) -> None:
    method = replace(QUICK, spaces=("heads", "ffn", "qk", "v", inputs))
    found = search_alone(method, problem)
    flops = problem.budget.cost.exact(found.architecture)
    assert flops == counted_flops(found.model, problem.seq_len)
    assert abs(flops / problem.budget.full - method.target_ratio) <= 0.1 * method.target_ratio
    full = LayerUnits(tuple(range(4)), tuple(range(48)))
    for name in ("heads", "ffn", "query_key", "value", "query_inputs"):
        kept = [getattr(layer, name) for layer in found.architecture.layers]
        assert kept != [getattr(full, name)] * 3, name
    layers = found.architecture.layers
    tied = all(layer.query_inputs == layer.key_inputs == layer.value_inputs for layer in layers)
    assert tied == (inputs == "input")


def test_layers_learn_to_leave(problem: Problem) -> None:
    """Their alphas move apart, and a third of the FLOPs is one of three layers."""
    method = replace(QUICK, spaces=("layers",), target_ratio=0.334, tolerance=0.05)
    alpha = GradientAlpha([method], problem, seed=0)
    before = alpha.alpha["layers"].detach().clone()
    assert before.shape == (1, 3, 1)
    training = training_of(problem)
    for progress in (0.0, 0.5):
        measured = alpha.learn(training, alpha.masks(progress), progress)
    moved = alpha.alpha["layers"].detach() - before
    assert (moved != 0).all()
    assert 0.3 < measured["expected_ratio"].item() <= 1
    found = search_alone(method, problem)
    assert sorted(bool(layer.dropped) for layer in found.architecture.layers) == [False, True, True]
    flops = problem.budget.cost.exact(found.architecture)
    assert flops == counted_flops(found.model, problem.seq_len)


@pytest.mark.parametrize("start", ["uniform", "fisher"])
def test_the_planted_units_survive(workbench: Workbench, problem: Problem, start: Any) -> None:
    """Of three students in a population, at three budgets, none loses one; the weights stand still.

    Soft masks keep what is needed as they are: a loud head that works as well at a tenth is rightly
    half closed, and then lies below the threshold. So soft masks get a head that is not loud.
    """
    planted = planted_problem(problem, 2.0)
    still = Stage(name="search", epochs=5, searches=True, learning_rate=1e-9)
    members = [
        replace(QUICK, start=start, target_ratio=ratio, stages=(still,))
        for ratio in (0.12, 0.3, 0.5)
    ]
    for result in run(members, planted):
        assert isinstance(result, SearchResult)
        assert min(measured(result, "open_ratio")) < 0.7, "no mask closed; nothing was at stake"
        assert holds_the_planted_units(result.architecture)
        assert workbench.score(result.model, result.architecture).metric == 1


def test_the_planted_inputs_survive(problem: Problem) -> None:
    """Three inputs of one layer's values carry the label; half of all inputs have to go."""
    planted = planted_problem(problem)
    price = planted.budget.cost.of_one_unit()["input_qkv"]
    share = 1 - 0.5 * 3 * TINY.layers * TINY.hidden * price / planted.budget.full
    stage = Stage(name="search", epochs=2, searches=True)
    method = replace(
        QUICK, spaces=("input_qkv",), target_ratio=share, tolerance=0.01, stages=(stage,)
    )
    result = search_alone(method, planted)
    kept, needed = result.architecture.layers[0].value_inputs, PLANTED.layers[0].value_inputs
    assert kept is not None
    assert needed
    assert set(needed) <= set(kept)
    assert len(kept) < TINY.hidden


@pytest.mark.parametrize("exploding", ["search", "recover"])
def test_weights_that_blow_up_in_the_last_step_are_a_failure(
    problem: Problem, exploding: str
) -> None:
    """No later loss shows it."""
    stages = [
        Stage(name="search", epochs=1 / 15, searches=True),
        Stage(name="recover", epochs=1 / 15),
    ]
    stages = [replace(s, learning_rate=1e38) if s.name == exploding else s for s in stages]
    if exploding == "search":
        del stages[1]
    (outcome,) = run([replace(QUICK, stages=tuple(stages))], problem)
    assert isinstance(outcome, SearchFailure)

"""Cross distillation: its solution against least squares written out, and its ends."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from objectives.measures.evaluate import predict
from objectives.methods.cross_distillation import CrossDistillation
from objectives.problem import Problem
from objectives.pruning.reconstruction import descended, least, reconstructed
from objectives.pruning.side_by_side import Pair
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance, logits_of, search_alone
from tests.objectives.cut_models import RAGGED

QUICK = CrossDistillation(rows=32, batch_size=16, tolerance=0.1, stages=(RECOVER,))
BARE = replace(QUICK, target_ratio=0.5, stages=())
BLOCKS = [(0, "attention.output"), (1, "output"), (2, "attention.output"), (2, "output")]
MIXES: dict[str, dict[str, Any]] = {
    "CD": {"mixes": "losses", "mu": 0.3},
    "SCD": {"mixes": "inputs", "alpha": 0.7, "beta": 0.4},
    "each its own way": {"mixes": "inputs", "alpha": 1.0, "beta": 1.0},
}


class TestConformance(PruningConformance):
    quick = QUICK


def entering(problem: Problem, model: torch.nn.Module, path: str) -> tuple[Tensor, Tensor]:
    """What enters an output projection, and the hidden states beside the block, of the rows that
    the method draws: (tokens, width) and (tokens, E), of the tokens that count."""
    told: list[tuple[Tensor, Tensor]] = []
    hook = model.get_submodule(path).register_forward_pre_hook(
        lambda _, inputs: told.append((inputs[0], inputs[1]))
    )
    units, beside = [], []
    last = path.startswith(f"bert.encoder.layer.{TINY.layers - 1}.")
    for rows in problem.train.drawn(QUICK.rows, np.random.default_rng(0), 32):
        batch = problem.train.batch(rows, "cpu")
        with torch.no_grad():
            model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        read = batch.attention_mask.clone()
        if last:
            read[:, 1:] = False
        for kept, whole in zip((units, beside), told[-1], strict=True):
            kept.append(whole[read].double())
    hook.remove()
    return torch.cat(units), torch.cat(beside)


@pytest.mark.parametrize("mixes", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize(("layer", "block"), BLOCKS)
def test_the_weights_are_those_of_least_squares(
    problem: Problem, mixes: dict[str, Any], layer: int, block: str
) -> None:
    """All tokens of both paths written out below one another, and the pull to what was there."""
    method = replace(QUICK, damping=0.2, **mixes)
    student = method.student(problem, RAGGED, 0)
    path = f"bert.encoder.layer.{layer}.{block}"
    (h_t, x_t), (h_s, x_s) = (entering(problem, m, path) for m in (problem.student, student))
    before, after = (
        m.get_parameter(f"{path}.dense.weight").detach().double()
        for m in (problem.student, student)
    )
    units, size = (
        (RAGGED.layers[layer].heads, 8) if "att" in block else (RAGGED.layers[layer].ffn, 1)
    )
    kept = [unit * size + place for unit in units for place in range(size)]
    given, wanted = [], []
    if method.mixes == "losses":
        for share, inputs in ((method.mu, h_t), (1 - method.mu, h_s)):
            given.append(share**0.5 * inputs[:, kept])
            wanted.append(share**0.5 * inputs @ before.T)
    else:
        a, b = method.alpha, method.beta
        mixed = (1 - b) * h_t + b * h_s
        given.append(mixed[:, kept])
        beside = (a * x_t + (1 - a) * x_s) - ((1 - b) * x_t + b * x_s)
        wanted.append((a * h_t + (1 - a) * h_s) @ before.T + beside)
    hold = 0.2 * sum(rows.square().sum(0).mean() for rows in given)
    given.append(hold**0.5 * torch.eye(len(kept), dtype=torch.float64))
    wanted.append(hold**0.5 * before[:, kept].T)
    expected = torch.linalg.lstsq(torch.cat(given), torch.cat(wanted)).solution.T
    assert (expected - before[:, kept]).abs().max() > 1e-3, "nothing to solve for tells nothing"
    torch.testing.assert_close(after[:, kept], expected, atol=1e-4, rtol=1e-3)
    others = torch.ones(before.shape[1], dtype=torch.bool)
    others[kept] = False
    assert not after[:, others].any(), "what is closed stays closed"


def test_the_two_kinds_of_mixing_have_their_ends_in_common(problem: Problem) -> None:
    for mu, alpha, beta in ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        losses = replace(BARE, mixes="losses", mu=mu).student(problem, RAGGED, 0).state_dict()
        inputs = replace(BARE, mixes="inputs", alpha=alpha, beta=beta)
        for name, value in inputs.student(problem, RAGGED, 0).state_dict().items():
            torch.testing.assert_close(value, losses[name], atol=1e-6, rtol=1e-5)


def test_it_ends_nearer_to_the_teacher_than_factors_and_these_than_nothing(
    problem: Problem,
) -> None:
    problem = replace(problem, alpha=problem.train)
    method = replace(BARE, target_ratio=0.6, rows=10_000)
    chosen = method.choose(problem, 0)
    states = {
        "nothing": problem.student,
        "factors": reconstructed(problem, chosen),
        "weights": method.student(problem, chosen, 0),
    }
    whole = predict(problem.student, problem.train, "cpu")
    far = {}
    for name, state in states.items():
        model = cut(state.state_dict(), problem.student.config, chosen)
        far[name] = float((predict(model, problem.train, "cpu") - whole).norm())
    assert far["weights"] < far["factors"] < far["nothing"]


def test_nothing_changes_where_nothing_is_cut(problem: Problem) -> None:
    for mixes in MIXES.values():
        whole = BertArchitecture.full(TINY)
        state = replace(QUICK, **mixes).student(problem, whole, 0).state_dict()
        for name, value in problem.student.state_dict().items():
            torch.testing.assert_close(state[name], value, atol=1e-5, rtol=1e-4)


def test_it_reads_no_label(problem: Problem) -> None:
    blind = replace(
        problem,
        train=replace(problem.train, labels=np.full_like(problem.train.labels, -1)),
        alpha=replace(problem.alpha, labels=np.full_like(problem.alpha.labels, -1)),
    )
    seen, unseen = search_alone(BARE, problem), search_alone(BARE, blind)
    assert seen.architecture == unseen.architecture
    assert torch.equal(logits_of(seen, problem), logits_of(unseen, problem))


def test_the_rows_are_drawn_with_the_seed(problem: Problem) -> None:
    one, again, other = (
        replace(BARE, rows=8).student(problem, RAGGED, seed).state_dict() for seed in (0, 0, 1)
    )
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(one[name], again[name])
    assert not torch.allclose(one[name], other[name])


def test_units_of_which_others_do_the_same_go_first(problem: Problem) -> None:
    """Ten neurons of the first layer are made copies of ten others: of each pair one is spared."""
    student = copy.deepcopy(problem.student)
    with torch.no_grad():
        layer = student.bert.encoder.layer[0]
        for weight in (layer.intermediate.dense.weight, layer.intermediate.dense.bias):
            weight[10:20] = weight[:10]
    method = replace(BARE, target_ratio=0.8, rows=10_000, damping=1e-6)
    chosen = method.choose(replace(problem, student=student), 0)
    [kept, *_] = chosen.masks(TINY, ("ffn",))["ffn"]
    assert not any(one and other for one, other in zip(kept[:10], kept[10:20], strict=True))


def test_the_other_mixing_s_settings_are_idle() -> None:
    assert "mu" in CrossDistillation(mixes="inputs").inactive()
    assert {"alpha", "beta"} <= set(CrossDistillation(mixes="losses").inactive())


def linear_net_error(pairs: list[Pair], seed: int) -> float:
    """Three linear layers, half of the inputs of the last two closed, 20 samples to fit them on;
    the squared error on others."""
    generator = torch.Generator().manual_seed(seed)
    first, *later = (
        torch.randn(16, 16, generator=generator, dtype=torch.float64) / 4 for _ in range(3)
    )
    samples, others = (
        torch.randn(n, 16, generator=generator, dtype=torch.float64) for n in (20, 500)
    )
    h_t = h_s = samples @ first.T
    unseen_t = unseen_s = others @ first.T
    for weight in later:
        kept = weight.norm(dim=0) >= weight.norm(dim=0).median()
        second = torch.zeros(int(kept.sum()), int(kept.sum()), dtype=torch.float64)
        towards = torch.zeros(16, int(kept.sum()), dtype=torch.float64)
        for pair in pairs:
            wanted, given = pair.compared(weight, h_t, h_s, torch.zeros_like(h_t))
            second += pair.share * given[:, kept].T @ given[:, kept]
            towards += pair.share * wanted.T @ given[:, kept]
        fitted = least(second, towards, weight[:, kept], 0.01)
        h_t, h_s = h_t @ weight.T, h_s[:, kept] @ fitted.T
        unseen_t, unseen_s = unseen_t @ weight.T, unseen_s[:, kept] @ fitted.T
    return float((unseen_t - unseen_s).square().mean())


def test_on_a_linear_net_both_losses_are_no_worse_than_the_worse_of_one() -> None:
    """Spec: test error of CD at most that of the correction alone or of plain reconstruction."""
    arms = {
        "cd": [Pair(1.0, 0.0, 0.6), Pair(0.0, 1.0, 0.4)],
        "correction": [Pair(1.0, 0.0)],
        "plain": [Pair(1.0, 1.0)],
    }
    errors = {
        name: sum(linear_net_error(pairs, seed) for seed in range(20)) / 20
        for name, pairs in arms.items()
    }
    assert errors["cd"] <= max(errors["correction"], errors["plain"])


def quadratic(seed: int, width: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and a start of a convex least squares of five outputs."""
    generator = torch.Generator().manual_seed(seed)
    given, wanted, start = (
        torch.randn(*size, generator=generator, dtype=torch.float64)
        for size in ((40, width), (40, 5), (5, width))
    )
    return given.T @ given, wanted.T @ given, start


@pytest.mark.parametrize("size", [1, 3])
def test_proximal_steps_end_at_the_minimiser_of_so_many_units(size: int) -> None:
    """With all units the closed form. Hard: that of those that are left. Soft: the gradient of a
    group that is left points against it, all of one length, lambda, which no other group's has."""
    second, towards, start = quadratic(0)
    groups = 12 // size

    def of_groups(matrix: Tensor) -> Tensor:
        return matrix.unflatten(1, (-1, size)).movedim(1, 0).flatten(1)

    for count in range(groups + 1):
        weight, kept = descended(second, towards, start, size, count, "hard")
        own, closed = kept.repeat_interleave(size), torch.zeros_like(weight)
        closed[:, own] = torch.linalg.solve(second[own][:, own], towards[:, own].T).T
        torch.testing.assert_close(weight, closed, rtol=1e-3, atol=1e-3)
        found, kept = descended(second, towards, start, size, count, "soft")
        assert kept.sum() == count
        own = kept.repeat_interleave(size)
        assert not found[:, ~own].any()
        if count == groups:
            torch.testing.assert_close(found, closed, rtol=1e-3, atol=1e-3)
            continue
        slope = of_groups(2 * (found @ second - towards))
        penalty = slope[~kept].norm(dim=1).max()
        direction = of_groups(found)[kept] / of_groups(found)[kept].norm(dim=1, keepdim=True)
        torch.testing.assert_close(
            slope[kept], -penalty * direction, rtol=2e-2, atol=2e-2 * penalty
        )


def slow(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A quadratic that is flat along most inputs, far from its minimum: who is small changes."""
    second, towards, start = quadratic(seed)
    scale = torch.logspace(-1.5, 0, 12, dtype=torch.float64).roll(5 * seed)
    return scale * second * scale[:, None], towards * scale, 3 * start


def returning() -> tuple[Tensor, Tensor, Tensor]:
    """After two steps the first group is 0 on its way to 2; the others end at 0.1. A step from 0
    would make it the largest."""
    curvature = torch.tensor([0.5, *[0.05] * 4, 1.0], dtype=torch.float64).repeat_interleave(2)
    ends = torch.tensor([2.0, *[0.1] * 5], dtype=torch.float64).repeat_interleave(2)
    starts = torch.tensor([-6.0, 10, 11, 12, 13, 14], dtype=torch.float64).repeat_interleave(2)
    return curvature.diag(), (curvature * ends).expand(5, 12), starts.repeat(5, 1)


@pytest.mark.parametrize("case", [slow(0), slow(1), slow(2), returning()])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_hard_steps_close_groups_for_good_on_schedule(
    case: tuple[Tensor, Tensor, Tensor], count: int
) -> None:
    """Beside a loop that remembers what it closed: in the first third of the steps
    count + floor((groups - count) (1 - 3 step / steps)) stay open, then `count`."""
    second, towards, start = case
    weight, groups, is_open = start.clone(), range(6), [True] * 6
    rate = 1 / (2 * torch.linalg.eigvalsh(second).max())
    for step in range(600):
        weight -= 2 * rate * (weight @ second - towards)
        by_size = sorted(groups, key=lambda own: float(weight[:, 2 * own : 2 * own + 2].norm()))
        for own in filter(is_open.__getitem__, by_size):
            if sum(is_open) > count + int((6 - count) * max(0.0, 1 - 3 * step / 600)):
                is_open[own] = False
        for own in groups:
            weight[:, 2 * own : 2 * own + 2] *= is_open[own]
    found, kept = descended(second, towards, start, 2, count, "hard")
    assert kept.tolist() == is_open
    assert sum(is_open) == count
    torch.testing.assert_close(found, weight)


@pytest.mark.parametrize("prox", ["hard", "soft"])
def test_proximal_steps_choose_units_in_the_same_budget(problem: Problem, prox: Any) -> None:
    closed, method = replace(BARE, target_ratio=0.6), replace(BARE, target_ratio=0.6, prox=prox)
    ranked, found = closed.choose(problem, 3), search_alone(method, problem)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.heads_per_layer == ranked.heads_per_layer
    assert found.architecture.ffn_per_layer == ranked.ffn_per_layer
    assert found.architecture != ranked
    whole = predict(problem.student, problem.alpha, "cpu")
    state, config = problem.student.state_dict(), problem.student.config
    untouched = predict(cut(state, config, found.architecture), problem.alpha, "cpu")
    assert (logits_of(found, problem) - whole).norm() < (untouched - whole).norm()

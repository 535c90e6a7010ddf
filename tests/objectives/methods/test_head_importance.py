"""Head importance after Michel et al.: its value, its order, and what it is not fooled by."""

import copy
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from objectives.methods.baselines import head_importance
from objectives.methods.baselines.head_importance import HeadImportance
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.problem import Problem
from objectives.pruning.importance import first_order_of_student
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.training.population import Population
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance
from tests.objectives.planted import PLANTED, planted_problem

QUICK = HeadImportance(spaces=("heads", "ffn"), batch_size=16, tolerance=0.1, stages=(RECOVER,))


class TestConformance(PruningConformance):
    quick = QUICK


def test_it_is_the_mean_size_of_the_slope_of_each_rows_loss(problem: Problem) -> None:
    """By central differences of the loss in the mask, one sequence at a time."""
    problem = replace(problem)
    population = Population.of([problem.student])
    expected = 0.0
    for row in range(len(problem.alpha)):
        batch = problem.alpha.batch(np.array([row]), "cpu")
        losses = []
        for change in (0.01, -0.01):
            mask = torch.ones(1, TINY.layers, TINY.heads)
            mask[0, 1, 2] += change
            logits = population.logits(batch, {"heads": mask})[0]
            losses.append(functional.cross_entropy(logits, batch.labels).item())
        expected += abs(losses[0] - losses[1]) / 0.02 / len(problem.alpha)
    actual = first_order_of_student(problem, ("heads",))["heads"][1, 2].item()
    assert actual == pytest.approx(expected, rel=0.05, abs=1e-5)


def test_layers_of_one_head_compete(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalised, each would have the importance 1."""
    raw = {"heads": torch.tensor([[3.0], [1.0], [2.0]])}
    monkeypatch.setattr(head_importance, "first_order_of_student", lambda *_: dict(raw))
    scores = replace(QUICK, spaces=("heads",)).scores(problem, 0)["heads"]
    assert scores.flatten().argsort().tolist() == [1, 2, 0]


def test_the_gradient_of_a_mask_is_context_times_gradient(problem: Problem) -> None:
    """In transformers' own forward pass, of what enters the output projection."""
    layer, batch = 1, problem.alpha.batch(np.arange(5), "cpu")
    student = copy.deepcopy(problem.student).requires_grad_(True)
    contexts: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs[0].retain_grad()
        contexts.append(inputs[0])

    student.bert.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(keep)
    logits = student(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
    functional.cross_entropy(logits, batch.labels).backward()
    (context,) = contexts
    assert context.grad is not None
    expected = (context * context.grad).sum((0, 1)).view(TINY.heads, TINY.head_dim).sum(-1)

    mask = torch.ones(1, TINY.layers, TINY.heads, requires_grad=True)
    logits = Population.of([problem.student]).logits(batch, {"heads": mask})[0]
    (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, batch.labels), mask)
    torch.testing.assert_close(gradient[0, layer], expected, atol=1e-6, rtol=1e-3)


def test_it_does_not_depend_on_the_batch_size(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    importance = []
    for size in (5, 64):
        monkeypatch.setattr("objectives.text.data._WITH_GRADIENTS", (size, 2**12))
        importance.append(first_order_of_student(replace(problem), ("heads",))["heads"])
    torch.testing.assert_close(importance[0], importance[1], atol=1e-7, rtol=1e-3)


def test_a_head_whose_output_weights_are_zero_has_none(problem: Problem) -> None:
    student = copy.deepcopy(problem.student)
    output = student.bert.encoder.layer[1].attention.output.dense.weight
    with torch.no_grad():
        output[:, 2 * TINY.head_dim : 3 * TINY.head_dim] = 0
    importance = first_order_of_student(replace(problem, student=student), ("heads",))["heads"]
    assert importance[1, 2] == 0
    assert (importance[1] > 0).sum() == TINY.heads - 1


def test_the_planted_head_survives_to_the_last_and_by_lot_it_does_not(problem: Problem) -> None:
    """Cost of one head: all others go first, at any budget that leaves room for one."""
    planted = planted_problem(problem)
    cost, heads = planted.budget.cost, TINY.layers * TINY.heads
    ratio = 1 - (heads - 1) * cost.of_one_unit()["heads"] / cost.full + 1e-6
    knobs = {"target_ratio": ratio, "tolerance": 0.001, "spaces": ("heads",)}
    chosen = HeadImportance(**knobs).choose(planted, 0)  # type: ignore[arg-type]
    assert chosen.heads_per_layer == PLANTED.heads_per_layer
    assert chosen.layers[0].heads == PLANTED.layers[0].heads
    by_lot = [RandomPruning(**knobs, draw=draw).choose(planted, 0) for draw in range(10)]  # type: ignore[arg-type]
    assert sum(lot == chosen for lot in by_lot) < 5

    def metric(architecture: BertArchitecture) -> float:
        student = planted.student
        return planted.select_score(cut(student.state_dict(), student.config, architecture))

    assert metric(chosen) == 1
    assert fmean(metric(lot) for lot in by_lot) < 0.8


def test_each_layer_has_norm_one_unless_that_is_turned_off(problem: Problem) -> None:
    price = problem.budget.cost.of_one_unit()["heads"]
    normed = QUICK.scores(problem, 0)["heads"] * price
    torch.testing.assert_close(normed.norm(dim=1), torch.ones(TINY.layers).to(normed))
    plain = replace(QUICK, normalise=False).scores(problem, 0)["heads"] * price
    assert not torch.allclose(plain.norm(dim=1), torch.ones(TINY.layers).to(plain), atol=1e-2)


def test_a_layer_that_does_not_matter_goes_first_and_the_budget_is_met(problem: Problem) -> None:
    student = copy.deepcopy(problem.student)
    with torch.no_grad():
        student.bert.encoder.layer[1].attention.output.dense.weight.zero_()
    useless = replace(problem, student=student)
    method = HeadImportance(target_ratio=0.9, tolerance=0.05)
    found = method.choose(useless, 0)
    assert abs(problem.budget.ratio(found) - 0.9) <= 0.05 * 0.9
    assert found.heads_per_layer[1] < TINY.heads
    assert found.heads_per_layer[0] == found.heads_per_layer[2] == TINY.heads

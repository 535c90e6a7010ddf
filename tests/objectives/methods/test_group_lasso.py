"""Group lasso: proximal steps on whole units, or on single weights, while the student learns."""

from dataclasses import replace

import pytest
import torch

from objectives.methods.baselines.group_lasso import GroupLasso, Shrinking
from objectives.problem import Problem
from objectives.pruning.reconstruction import shrinkage
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import AXES
from objectives.training.computed_weights import unit_parts
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance, search_alone, training_of

SHRINK = Stage(name="search", epochs=1, learning_rate=1e-3, loss="prediction+hidden", searches=True)
QUICK = GroupLasso(batch_size=16, tolerance=0.1, penalty=2.0, stages=(SHRINK, RECOVER))


class TestConformance(PruningConformance):
    quick = QUICK


@pytest.mark.parametrize("size", [1, 3])
def test_a_proximal_step_is_the_minimiser_by_brute_force(size: int) -> None:
    """|x - w|^2 / 2 + t |x| on a fine grid along w, where the minimum lies, and beside it."""
    generator = torch.Generator().manual_seed(size)
    for threshold in (0.0, 0.5, 2.0, 10.0):
        w = torch.randn(size, generator=generator, dtype=torch.float64)
        x = w * shrinkage(w.norm(), threshold)

        def objective(point: torch.Tensor, w: torch.Tensor = w, t: float = threshold) -> float:
            return float((point - w).square().sum() / 2 + t * point.norm())

        along = min(objective(w * share) for share in torch.linspace(-0.5, 1.5, 2001).tolist())
        assert objective(x) <= along + 1e-12
        for _ in range(20):
            beside = x + 0.01 * torch.randn(size, generator=generator, dtype=torch.float64)
            assert objective(x) <= objective(beside)
    assert not torch.zeros(size).mul(shrinkage(torch.zeros(()), 0.0)).isnan().any()


def test_the_parts_of_a_unit_are_what_the_cut_removes(problem: Problem) -> None:
    """Closing it leaves zeros nowhere, and everything else as it was."""
    for space, units in (("heads", TINY.heads), ("ffn", TINY.ffn)):
        training = training_of(problem)
        weights = training.population.weights
        parts = unit_parts(weights, 1, AXES[space], units)
        for part in parts:
            part[:, 2].zero_()
        masks = [[True] * units for _ in range(TINY.layers)]
        masks[1][2] = False
        architecture = BertArchitecture.from_masks(TINY, {space: masks})
        config = problem.student.config
        closed = cut(training.population.slot(0), config, architecture)
        plain = cut(problem.student.state_dict(), config, architecture)
        for name, weight in closed.state_dict().items():
            assert torch.equal(weight, plain.state_dict()[name]), name
        gone = sum(int((w == 0).sum()) for n, w in weights.items() if "layer.1" in n and w.ndim > 2)
        assert gone == sum(part[0, 0].numel() for part in parts)


def test_a_step_shrinks_each_unit_by_its_size_and_each_student_by_its_penalty(
    problem: Problem,
) -> None:
    training = training_of(problem, students=2)
    members = [replace(QUICK, penalty=0.0), replace(QUICK, penalty=6.0)]  # of a rate of a half
    parts = unit_parts(training.population.weights, 0, AXES["ffn"], TINY.ffn)
    before = torch.cat([part.flatten(2) for part in parts], dim=-1)
    alpha = Shrinking(members, problem)
    alpha.learn(training, {}, 0.0)
    after = torch.cat([part.flatten(2) for part in parts], dim=-1)
    norms, number = before.norm(dim=-1, keepdim=True), 2 * TINY.hidden
    share = (1 - 1e-3 * 3.0 * number**0.5 / norms).clamp_min(0)
    assert torch.equal(after[0], before[0])
    torch.testing.assert_close(after[1], before[1] * share[1])
    means = (norms * share)[1, :, 0] / number**0.5
    torch.testing.assert_close(alpha.means["ffn"][1, 0], means)


def test_a_student_that_loses_nothing_is_not_shrunk(problem: Problem) -> None:
    found = search_alone(replace(QUICK, penalty=100.0, target_ratio=1.0), problem)
    assert found.architecture == BertArchitecture.full(TINY)
    for name, weight in found.model.state_dict().items():
        assert torch.equal(weight, problem.student.state_dict()[name]), name


def test_units_that_the_penalty_closed_leave_first(problem: Problem) -> None:
    """A neuron of small weights is closed in one step, and those that are open meet the budget."""
    training = training_of(problem)
    for part in unit_parts(training.population.weights, 2, AXES["ffn"], TINY.ffn):
        part[:, :20].mul_(1e-4)
    alpha = Shrinking([replace(QUICK, penalty=2.0, target_ratio=0.9, tolerance=0.08)], problem)
    measured = alpha.learn(training, {}, 0.0)
    units = TINY.layers * (TINY.heads + TINY.ffn)
    assert measured["closed"].tolist() == pytest.approx([20 / units])
    chosen = alpha.architecture(0)
    assert chosen.layers[2].ffn == tuple(range(20, TINY.ffn))
    assert chosen.layers[0].ffn == tuple(range(TINY.ffn))


def test_l1_shrinks_single_weights(problem: Problem) -> None:
    training = training_of(problem)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    before = training.population.weights[name].detach().clone()
    alpha = Shrinking([replace(QUICK, of="weights", penalty=40.0)], problem)
    alpha.learn(training, {}, 0.0)
    expected = before.sign() * (before.abs() - 0.02).clamp_min(0)
    torch.testing.assert_close(training.population.weights[name].detach(), expected)
    assert (expected == 0).any()

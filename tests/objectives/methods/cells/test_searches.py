"""Laws of the searches by gradient and by a controller."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from maskfront import AutoKeras, Darts, Enas, IDarts, SearchMethod
from objectives.problem import Problem
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import NONE
from tests.objectives.conformance import search_alone

ONE_EDGE: dict[str, Any] = {
    **{"width": 16, "nodes": 1, "operations": ("positions", "conv3")},
    **{"search_epochs": 8, "epochs": 1, "batch_size": 16},
}
RECURRENT: dict[str, Any] = {
    **{"width": 16, "nodes": 2, "recurrent": True},
    **{"search_epochs": 0.2, "epochs": 1, "batch_size": 16},
}


@pytest.mark.parametrize(
    "method",
    [
        Darts(**ONE_EDGE, grad_rescale=0.1),
        pytest.param(Darts(**ONE_EDGE, grad_rescale=0.1, order=2), marks=pytest.mark.slow),
        IDarts(**ONE_EDGE, grad_rescale=0.1),
        Enas(**ONE_EDGE, edges=1, rewards=4, candidates=16),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_operation_that_cannot_fit_loses(method: SearchMethod, problem: Problem) -> None:
    """Positions say nothing of the words, and the only edge is all that the classifier gets."""
    found = search_alone(method, problem).architecture
    assert isinstance(found, Genotype)
    assert found.blocks == ("conv3",)


CHEAP: dict[str, Any] = {
    **{"width": 16, "nodes": 2, "operations": ("conv3", "max3"), "batch_size": 16, "epochs": 0.2},
    **{"target_ratio": 1e-4, "tolerance": 0.0, "flops_weight": 100.0},
}


@pytest.mark.parametrize(
    "method",
    [
        AutoKeras(**{**CHEAP, "target_ratio": 1e-6}, widest=32, search_epochs=1, candidates=3),
        Darts(**CHEAP, search_epochs=4, grad_rescale=0.1),
        Enas(**CHEAP, edges=1, search_epochs=1, rewards=4, candidates=16),
    ],
    ids=lambda method: type(method).__name__,
)
def test_the_flops_loss_counts_against_a_cell(method: SearchMethod, problem: Problem) -> None:
    found = search_alone(method, problem).architecture
    assert isinstance(found, Genotype)
    assert "conv3" not in found.blocks
    assert found.width == 16


@pytest.mark.parametrize("kind", [Darts, IDarts])
def test_the_flops_loss_is_on_the_side_of_the_cell_that_would_be_derived(
    kind: type[Darts | IDarts], problem: Problem
) -> None:
    method = kind(**{**CHEAP, "operations": ("conv3", "max3", NONE), "nodes": 1})
    net = method._super_net(problem, 0)
    costs = net.costs(problem.seq_len)
    (place,) = method.space.places
    # "none" leads, and "conv3" is derived, which is dearer than what the weights alone expect.
    alpha = torch.tensor([1.0, 0.5, 3.0], requires_grad=True)
    weights = {place: alpha.softmax(-1)}
    middle = costs[NONE] + 0.5 * costs["conv3"]
    share = middle / problem.flops_full
    drawn = replace(method, target_ratio=share, tolerance=0.2)
    assert net.expected_flops(weights, problem.seq_len).item() < middle
    (slope,) = torch.autograd.grad(drawn._flops_loss(net, weights, problem), alpha)
    assert slope[0] > 0, "less of the dear operation"
    assert slope[2] == pytest.approx(0, abs=1e-6), "no more of none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [Darts(**RECURRENT, order=2), IDarts(**RECURRENT), Enas(**RECURRENT, rewards=4, candidates=4)],
    ids=lambda method: type(method).__name__,
)
def test_recurrent_cells_choose_activations(method: SearchMethod, problem: Problem) -> None:
    found = search_alone(method, problem).architecture
    assert isinstance(found, Genotype)
    assert found.recurrent
    assert set(found.blocks) <= {"tanh", "relu", "sigmoid", "linear"}
    assert len(found.blocks) == 2

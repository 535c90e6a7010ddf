"""Laws of the searches by gradient and by a controller."""

from typing import Any

import pytest

from maskfront import AutoKeras, Darts, Enas, IDarts, SearchMethod
from objectives.problem import Problem
from objectives.students.cells.genotype import Genotype
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

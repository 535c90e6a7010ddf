"""ENAS: a controller that learns from the scores of cells with shared weights."""

from dataclasses import replace

import pytest

from maskfront import Controller, Enas
from objectives.problem import Problem
from tests.objectives.conformance import SearchMethodConformance, search_alone

QUICK = Enas(
    **{"width": 16, "nodes": 2, "operations": ("conv3", "max3"), "edges": 1, "batch_size": 16},
    **{"search_epochs": 1, "epochs": 1, "rewards": 4, "candidates": 4},
)


class TestEnas(SearchMethodConformance):
    quick = replace(QUICK, nodes=1, search_epochs=0.2, epochs=0.2)


@pytest.mark.parametrize(("epochs", "rounds"), [(0.2, 1), (1, 1), (2.5, 2), (3, 3)])
def test_the_controller_learns_once_a_pass(
    epochs: float, rounds: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = []
    monkeypatch.setattr(Controller, "learn", lambda self, pairs: learned.extend(pairs))
    search_alone(replace(QUICK, search_epochs=epochs, epochs=0.1), problem)
    assert len(learned) == rounds * QUICK.rewards

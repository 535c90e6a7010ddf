"""What every strategy keeps to, whatever it learns."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from objectives.errors import UserError
from objectives.strategies.controller import Controller, ControllerSettings
from objectives.strategies.edit_distance import DistanceSettings, EditDistance
from objectives.strategies.evolution import Evolution, EvolutionSettings
from objectives.strategies.operation_priority import OperationPriority, PrioritySettings
from objectives.strategies.soft_choices import SoftChoices, SoftSettings
from objectives.strategies.strategy import Candidate, Places, Strategy, Uniform

PLACES: Places = {
    "node[0].operation": ("conv3", "conv5", "attention"),
    "node[1].input": (0, 1),
    "node[1].operation": ("conv3", "conv5", "attention"),
    "norm": (True, None),
    "width": (64,),
}

Make = Callable[[Places, int], Strategy[Any]]
Teach = Callable[[Strategy[Any], int], Any]
"""From a strategy and the number of a lesson to feedback."""


def scores(strategy: Strategy[Any], lesson: int) -> list[tuple[Candidate, float]]:
    generator = np.random.default_rng(lesson)
    return [
        (
            {name: c[int(generator.integers(len(c)))] for name, c in PLACES.items()},
            float(generator.normal()),
        )
    ]


def gradients(strategy: Strategy[Any], lesson: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(lesson)
    return {name: torch.randn(len(c), generator=generator) for name, c in PLACES.items()}


@dataclass
class Case:
    make: Make
    teach: Teach = scores


CASES = {
    "uniform": Case(Uniform),
    "ageing": Case(partial(Evolution, settings=EvolutionSettings(population=4, sample=2))),
    "worst dies": Case(
        partial(
            Evolution,
            settings=EvolutionSettings(population=4, sample=2, dies="worst", mutation=0.3),
        )
    ),
    "priority": Case(partial(OperationPriority, settings=PrioritySettings(initial=3, parents=2))),
    "controller": Case(
        partial(Controller, settings=ControllerSettings(hidden=5, learning_rate=0.05))
    ),
    "distance": Case(partial(EditDistance, settings=DistanceSettings(initial=3, cooling=0.3))),
    "softmax": Case(partial(SoftChoices, settings=SoftSettings(learning_rate=0.1)), gradients),
    "gumbel": Case(
        partial(SoftChoices, settings=SoftSettings(kind="gumbel", learning_rate=0.1)), gradients
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def taught(case: Case, lessons: range, seed: int = 0) -> Strategy[Any]:
    strategy = case.make(PLACES, seed)
    for lesson in lessons:
        strategy.learn(case.teach(strategy, lesson))
    return strategy


def test_it_proposes_one_choice_of_each_place(case: Case) -> None:
    for strategy in (case.make(PLACES, 0), taught(case, range(6))):
        for k in (1, 5):
            found = strategy.propose(k)
            assert len(found) == k
            for candidate in found:
                assert list(candidate) == list(PLACES)
                assert all(candidate[name] in choices for name, choices in PLACES.items())


def test_the_seed_decides(case: Case) -> None:
    assert taught(case, range(6)).propose(8) == taught(case, range(6)).propose(8)
    assert any(
        taught(case, range(6)).propose(8) != taught(case, range(6), seed).propose(8)
        for seed in (1, 2)
    )


@pytest.mark.parametrize("cut", [0, 3, 7, 8])
def test_learning_at_once_or_in_turn_is_the_same(case: Case, cut: int) -> None:
    if case.teach is gradients:
        return
    pairs = [pair for lesson in range(8) for pair in scores(case.make(PLACES, 0), lesson)]
    whole, parts = case.make(PLACES, 0), case.make(PLACES, 0)
    whole.learn(pairs)
    parts.learn(pairs[:cut])
    parts.learn(pairs[cut:])
    assert whole.propose(8) == parts.propose(8)


def test_what_was_learned_is_not_changed_from_outside(case: Case) -> None:
    if case.teach is gradients:
        return
    strategy = case.make(PLACES, 0)
    feedback = scores(strategy, 0)
    strategy.learn(feedback)
    same = case.make(PLACES, 0)
    same.learn(scores(same, 0))
    feedback[0][0]["norm"] = "other"  # type: ignore[index]
    assert strategy.propose(8) == same.propose(8)


@pytest.mark.parametrize("choices", [(), ("a", "a")])
def test_choices_are_distinct(choices: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"place 'x' has the choices .*; give distinct ones"):
        Uniform({"x": choices}, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EvolutionSettings(sample=0),
        lambda: EvolutionSettings(mutation=0.0),
        lambda: EvolutionSettings(dies="best"),  # type: ignore[arg-type]
        lambda: PrioritySettings(temperature=0.0),
        lambda: ControllerSettings(baseline_decay=1.0),
        lambda: DistanceSettings(cooling=1.0),
        lambda: SoftSettings(temperature=(1.0, 0.0)),
        lambda: SoftSettings(kind="hard"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"Settings\.\w+ is"):
        make()


def test_names_are_checked() -> None:
    with pytest.raises(UserError, match="names 'widht', which is not a place; did you mean"):
        OperationPriority(PLACES, 0, PrioritySettings(uniform=("widht",)))
    for together in ((("width", "width"),), (("depth",),)):
        with pytest.raises(UserError, match="name places, each only once"):
            SoftChoices(PLACES, 0, SoftSettings(together=together))


def test_uniform_draws_each_choice_as_often() -> None:
    """A chi square of 2 degrees of freedom is above 13.8 with probability 0.001."""
    found = [candidate["node[0].operation"] for candidate in Uniform(PLACES, 0).propose(3000)]
    counts = np.array([found.count(choice) for choice in PLACES["node[0].operation"]])
    assert ((counts - 1000) ** 2 / 1000).sum() < 13.8

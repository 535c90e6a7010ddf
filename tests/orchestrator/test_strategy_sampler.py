"""Strategies over places as samplers of real studies, in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from objectives.errors import UserError
from objectives.strategies.edit_distance import DistanceSettings, EditDistance
from objectives.strategies.evolution import Evolution, EvolutionSettings
from objectives.strategies.strategy import Candidate, Places, Remembering, Uniform
from orchestrator.sampler import make_sampler
from orchestrator.strategy_sampler import StrategySampler

SPACE = {
    "operations[0]": CategoricalDistribution(("conv3", "conv5", "gated")),
    "operations[1]": CategoricalDistribution(("conv3", "conv5", "gated")),
    "width": CategoricalDistribution((32, 64, 128)),
    "norm": CategoricalDistribution((True, None)),
}
SMALL = partial(Evolution, settings=EvolutionSettings(population=6, sample=4))
GP = partial(EditDistance, settings=DistanceSettings(initial=3, cooling=0.5))


class Recorder(Remembering):
    """Counts up through the choices of the width, and keeps what it is told."""

    made: list[Recorder] = []  # noqa: RUF012

    def __init__(self, places: Places, seed: int):
        super().__init__(places, seed)
        Recorder.made.append(self)

    def propose(self, k: int) -> list[Candidate]:
        first = {name: choices[0] for name, choices in self.places.items()}
        return [{**first, "width": (32, 64, 128)[i % 3]} for i in range(k)]


@pytest.fixture(autouse=True)
def _forget() -> None:
    Recorder.made.clear()


def study_of(
    make: Callable[[Places, int], Any] = Recorder, *directions: str, seed: int = 0
) -> optuna.Study:
    return optuna.create_study(
        directions=directions or ["maximize"], sampler=StrategySampler(make, SPACE, seed)
    )


def ask(study: optuna.Study) -> optuna.Trial:
    return study.ask(dict(SPACE))


def learned() -> list[tuple[Any, float]]:
    return [(candidate["width"], score) for candidate, score in Recorder.made[-1].learned]


def test_every_knob_is_a_place_and_the_value_is_the_score() -> None:
    study = study_of()
    first = ask(study)
    assert Recorder.made[-1].places == {name: knob.choices for name, knob in SPACE.items()}
    study.tell(first, 0.25)
    second = ask(study)
    (pair,) = Recorder.made[-1].learned
    assert pair == (first.params, 0.25)
    study.tell(second, 0.5)
    ask(study)
    assert [score for _, score in Recorder.made[-1].learned] == [0.25, 0.5]
    assert len(Recorder.made) == 1


def test_what_is_minimised_changes_its_sign() -> None:
    study = study_of(Recorder, "minimize")
    study.tell(ask(study), 0.25)
    ask(study)
    assert learned() == [(32, -0.25)]


def test_of_two_objectives_the_front_is_the_score_and_moves() -> None:
    """(0.8, 5) is beaten in both by (0.9, 4), and comes to the second front; then to the third."""
    study = study_of(Recorder, "maximize", "minimize")
    study.tell(ask(study), (0.8, 5.0))
    study.tell(ask(study), (0.7, 1.0))
    ask(study)
    assert [score for _, score in learned()] == [1.0, 1.0]
    study.tell(ask(study), (0.9, 4.0))
    ask(study)
    assert [score for _, score in learned()] == [0.0, 1.0, 1.0]
    study.tell(ask(study), (0.95, 3.0))
    ask(study)
    assert [score for _, score in learned()] == [0.0, 1.0, 0.5, 1.0]
    assert len(Recorder.made) == 3  # made anew when others moved, and only then


def test_what_violates_a_constraint_comes_last() -> None:
    study = study_of(Recorder, "maximize", "minimize")
    for values, violation in (((0.9, 1.0), 0.2), ((0.1, 9.0), 0.0), ((0.99, 0.5), 0.1)):
        trial = ask(study)
        trial.set_constraint("budget", violation)
        study.tell(trial, values)
    ask(study)
    assert [score for _, score in learned()] == [0.0, 1.0, 0.5]


def test_a_resumed_study_is_learned_again_in_the_order_in_which_it_finished() -> None:
    study = study_of()
    trials = [ask(study) for _ in range(3)]
    for number in (2, 0, 1):
        study.tell(trials[number], float(number))
    ask(study)
    first = list(Recorder.made[-1].learned)
    assert [score for _, score in first] == [2.0, 0.0, 1.0]
    study.sampler = StrategySampler(Recorder, SPACE, 1)
    ask(study)
    assert Recorder.made[-1].learned == first
    assert len(Recorder.made) == 2


def test_workers_that_ask_one_after_the_other_spread() -> None:
    study = study_of()
    assert [ask(study).params["width"] for _ in range(3)] == [32, 64, 128]
    surest = study_of(GP)
    for _ in range(4):
        surest.tell(ask(surest), 0.0)
    in_flight = [tuple(ask(surest).params.values()) for _ in range(6)]
    assert len(set(in_flight)) == 6


def test_what_failed_is_not_proposed_again() -> None:
    study = study_of(GP)
    for index in range(4):
        study.tell(ask(study), float(index))
    failed = []
    for _ in range(5):
        trial = ask(study)
        failed.append(tuple(trial.params.values()))
        study.tell(trial, state=TrialState.FAIL)
    assert len(set(failed)) == 5


def test_enqueued_knobs_go_first_and_are_learned() -> None:
    study = study_of()
    given = {"operations[0]": "gated", "operations[1]": "conv3", "width": 128, "norm": None}
    study.enqueue_trial(given)
    trial = ask(study)
    assert trial.params == given
    study.tell(trial, 0.5)
    ask(study)
    assert Recorder.made[-1].learned == [(given, 0.5)]


def test_trials_without_some_place_are_passed_over() -> None:
    study = study_of()
    trial = study.ask({"width": SPACE["width"]})
    study.tell(trial, 0.5)
    ask(study)
    assert Recorder.made[-1].learned == []


@pytest.mark.parametrize("make", [Uniform, SMALL, GP])
@pytest.mark.parametrize("directions", [["maximize"], ["maximize", "minimize"]])
def test_the_seed_decides_a_study(
    make: Callable[[Places, int], Any], directions: list[str]
) -> None:
    def run(seed: int) -> list[dict[str, Any]]:
        study = study_of(make, *directions, seed=seed)
        study.optimize(lambda trial: objectives(trial)[: len(directions)], n_trials=12)
        return [trial.params for trial in study.trials]

    assert run(3) == run(3)
    assert run(3) != run(4)


def objectives(trial: optuna.Trial) -> tuple[float, ...]:
    knobs = {name: trial.suggest_categorical(name, knob.choices) for name, knob in SPACE.items()}
    good = (knobs["operations[0]"] == "gated") + (knobs["operations[1]"] == "conv5")
    return float(good + (knobs["norm"] is None) + knobs["width"] / 64), float(knobs["width"])


def test_evolution_finds_the_front_of_a_small_space() -> None:
    """Three points: all good, at each width. 54 candidates in all."""
    study = study_of(SMALL, "maximize", "minimize")
    study.optimize(objectives, n_trials=45)
    best = {trial.values[1]: trial.values[0] for trial in study.best_trials}
    assert best == {32.0: 3.5, 64.0: 4.0, 128.0: 5.0}


def test_a_study_takes_it_as_a_function_of_a_seed() -> None:
    sampler = make_sampler(7, 0, 4, name=lambda seed: StrategySampler(SMALL, SPACE, seed))
    study = optuna.create_study(sampler=sampler)
    assert study.direction == StudyDirection.MINIMIZE
    study.optimize(lambda trial: objectives(trial)[1], n_trials=8)


def test_other_knobs_are_refused() -> None:
    with pytest.raises(UserError, match=r"has rate = FloatDistribution.*give a Categorical"):
        StrategySampler(Uniform, {**SPACE, "rate": FloatDistribution(0, 1)}, 0)
    study = study_of()
    with pytest.raises(UserError, match="has no place for rate; give it the space of the study"):
        study.ask({**SPACE, "rate": FloatDistribution(0, 1)})

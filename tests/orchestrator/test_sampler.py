"""Samplers by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import get_args

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    GPSampler,
    GridSampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import TrialState, create_trial

from objectives.errors import UserError
from orchestrator.sampler import SamplerName, make_sampler

KNOB = {"x": FloatDistribution(0, 1)}


def study_of(
    sampler: BaseSampler, finished: Sequence[float], violation: float = -1
) -> optuna.Study:
    """Trials at these values of x: the higher the better, in metric and cost."""
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for x in finished:
        attributes = {"constraints:budget": violation}
        study.add_trial(
            create_trial(
                params={"x": x},
                distributions=dict(KNOB),
                values=[x, 1 - x],
                system_attrs=attributes,
            )
        )
        assert study.trials[-1].constraints == {"budget": violation}
    return study


def drawn(study: optuna.Study, trials: int = 12) -> list[float]:
    """What is asked next, each time anew: no answer is told."""
    values = []
    for _ in range(trials):
        trial = study.ask()
        values.append(trial.suggest_float("x", 0, 1))
        study.tell(trial, state=TrialState.FAIL)
    return values


def quietly(make: Callable[[], BaseSampler]) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return make()


def make(name: SamplerName, so_far: int = 0) -> BaseSampler:
    return quietly(lambda: make_sampler(1, so_far, 4, name=name))


def test_tpe_spreads_what_is_asked_together() -> None:
    """Ten trials in flight, none told: without the liar they lie within 0.05 of each other."""
    study = study_of(make("tpe"), [place / 40 for place in range(40)])
    in_flight = [study.ask(dict(KNOB)).params["x"] for _ in range(10)]
    assert max(in_flight) - min(in_flight) > 0.1


@pytest.mark.parametrize("name", get_args(SamplerName))
def test_a_sampler_by_name(name: SamplerName) -> None:
    study = study_of(make(name), [place / 12 for place in range(12)])
    assert all(0 <= x <= 1 for x in drawn(study, trials=2))
    kinds = {"tpe": TPESampler, "gp": GPSampler, "nsgaii": NSGAIISampler, "random": RandomSampler}
    assert isinstance(study.sampler, kinds[name])


@pytest.mark.parametrize("name", get_args(SamplerName))
def test_the_same_launch_draws_the_same_and_a_resumed_one_does_not(name: SamplerName) -> None:
    first, again, later = (drawn(study_of(make(name, so_far), []), 2) for so_far in (0, 0, 4))
    assert first == again
    assert not set(first) & set(later)


def test_a_sampler_of_ones_own_gets_a_seed_that_never_comes_again() -> None:
    seeds: list[int] = []

    def own(seed: int) -> BaseSampler:
        seeds.append(seed)
        return RandomSampler(seed=seed)

    for so_far, worker in ((0, 0), (0, 1), (4, 0)):
        sampler = make_sampler(1, so_far, 4, worker, own)
        assert isinstance(sampler, RandomSampler)
    assert len(set(seeds)) == 3
    make_sampler(1, 0, 4, 0, own)
    assert seeds[-1] == seeds[0]
    with pytest.raises(UserError, match=r"returned 'tpe'; it must return an Optuna"):
        make_sampler(1, 0, 4, 0, lambda seed: "tpe")  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"Study\.sampler raises TypeError: .*search_space"):
        make_sampler(1, 0, 4, 0, GridSampler)  # type: ignore[arg-type]


def test_a_class_of_samplers_is_seeded() -> None:
    """The first parameter of `TPESampler` is no seed, that of `NSGAIISampler` its population."""
    for kind in (TPESampler, NSGAIISampler, RandomSampler):
        first, second, other = (
            drawn(study_of(make_sampler(seed, 0, 4, name=kind), [])) for seed in (1, 1, 2)
        )
        assert first == second != other

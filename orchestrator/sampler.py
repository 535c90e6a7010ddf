"""The sampler of a study, made afresh at each launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from objectives.errors import UserError

SamplerName = Literal["tpe", "gp", "nsgaii", "random"]
SamplerFactory = Callable[[int], BaseSampler]
"""From a seed to a sampler: of OptunaHub, or of one's own."""

_RANDOM_TRIALS = 8
"""Random trials before a sampler models the outcome."""


def make_sampler(
    seed: int,
    trials_so_far: int,
    population: int,
    worker: int = 0,
    name: SamplerName | SamplerFactory = "tpe",
) -> BaseSampler:
    """Optuna's sampler of this name, or what a factory makes, seeded so that it never repeats its
    draws.

    One with a fixed seed does when a study is resumed or a worker joins (Optuna issue 3255), so the
    seed is mixed with the number of trials that the study already holds and with the worker's own
    number.

    What each learns of a trial that was stopped early: TPE that its knobs are none of the best; GP,
    NSGA-II and random nothing, they read finished trials alone.

    docs/samplers.md compares them on replayed trials.
    """
    mixed = int(np.random.SeedSequence([seed, trials_so_far, worker]).generate_state(1)[0])
    at_random = max(_RANDOM_TRIALS, population)
    if not isinstance(name, str):
        made = name(mixed)
        if not isinstance(made, BaseSampler):
            raise UserError(f"Study.sampler returned {made!r}; it must return an Optuna sampler")
        return made
    if name == "gp":
        return GPSampler(seed=mixed, n_startup_trials=at_random)
    if name == "nsgaii":
        return NSGAIISampler(seed=mixed, population_size=at_random)
    if name == "random":
        return RandomSampler(seed=mixed)
    return FairTpe(seed=mixed, n_startup_trials=at_random)


class FairTpe(TPESampler):
    """Two-objective TPE that never takes a trial that was stopped early for a good one.

    Optuna's own takes a tenth of all trials for good, and fills up with stopped ones, in no order,
    where fewer have finished inside their budget.

    Asks that come together are spread, since running trials count as bad (constant liar). All knobs
    of a trial are drawn from one reading of the storage, where Optuna's own reads once a knob.
    """

    def __init__(self, *, seed: int, n_startup_trials: int):
        super().__init__(
            seed=seed,
            n_startup_trials=n_startup_trials,
            multivariate=False,
            constant_liar=True,
        )
        self._gamma = self._good  # as an argument it is deprecated, and nothing stands for it
        self._look: _Look | None = None

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw one knob."""
        if self._look is None or self._look.asking != (study, trial.number):
            self._look = _Look(study, trial.number)
        return super().sample_independent(self._look, trial, param_name, param_distribution)

    def _good(self, trials: int) -> int:
        """How many of so many finished or stopped trials are good: as in Optuna's of several
        objectives a tenth; but none that was stopped."""
        assert self._look is not None
        return int(min(math.ceil(0.1 * trials), self._look.most_good))


class _Look(optuna.Study):
    """A study as one reading of its storage shows it, to draw the knobs of one trial."""

    def __init__(self, study: optuna.Study, number: int):
        vars(self).update(vars(study))
        self.asking = (study, number)
        self._trials = study.get_trials(deepcopy=False)
        self.most_good = _most_good(self)

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        """What every reading of a `Study` goes through; samplers ask for no copies."""
        return [trial for trial in self._trials if states is None or trial.state in states]


def _most_good(study: optuna.Study) -> float:
    """How many trials could be good before stopped ones were taken."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    finished = [trial for trial in ended if trial.state is TrialState.COMPLETE]
    if len(finished) == len(ended):
        return math.inf
    return sum(all(value <= 0 for value in trial.constraints.values()) for trial in finished)

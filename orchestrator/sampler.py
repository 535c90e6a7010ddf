"""Sampler of a study, made again at each launch."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from objectives.errors import MaskfrontError, UserError, first_line

SamplerName = Literal["tpe", "gp", "nsgaii", "random"]
SamplerFactory = Callable[[int], BaseSampler]
"""Function from a seed to a sampler, or a class that takes a `seed`."""

_RANDOM_TRIALS = 8  # random trials before a sampler models the outcome


def make_sampler(
    seed: int,
    trials_so_far: int,
    population: int,
    worker: int = 0,
    name: SamplerName | SamplerFactory = "tpe",
) -> BaseSampler:
    """Make Optuna's sampler of this name, or call a factory."""
    # A sampler with a fixed seed repeats its draws when a study is resumed or a worker joins
    # (Optuna issue 3255): the seed is mixed with the trials so far and the worker's number.
    mixed = int(np.random.SeedSequence([seed, trials_so_far, worker]).generate_state(1)[0])
    at_random = max(_RANDOM_TRIALS, population)
    if not isinstance(name, str):
        # The first parameter of a class of Optuna is seldom its seed.
        try:
            made = name(seed=mixed) if isinstance(name, type) else name(mixed)
        except MaskfrontError:
            raise
        except Exception as error:  # code of the user's
            raise UserError(
                f"Study.sampler raises {type(error).__name__}: {first_line(error)}; give a "
                "function that makes a sampler from a seed"
            ) from error
        if not isinstance(made, BaseSampler):
            raise UserError(f"Study.sampler returned {made!r}; it must return an Optuna sampler")
        return made
    if name == "gp":
        return GPSampler(seed=mixed, n_startup_trials=at_random, warn_independent_sampling=False)
    if name == "nsgaii":
        return NSGAIISampler(seed=mixed, population_size=at_random)
    if name == "random":
        return RandomSampler(seed=mixed)
    return TPESampler(
        seed=mixed,
        n_startup_trials=at_random,
        multivariate=False,
        constant_liar=True,  # running trials count as bad, so that asks that come together spread
    )

"""The sampler of a study, made afresh at each launch."""

from __future__ import annotations

import numpy as np
from optuna.samplers import BaseSampler, TPESampler

_RANDOM_TRIALS = 8
"""Random trials before TPE models the outcome."""


def make_sampler(seed: int, trials_so_far: int, population: int) -> BaseSampler:
    """Two-objective TPE; a batch of asks is spread, as running trials count as bad (constant liar).

    A sampler with a fixed seed repeats its draws when a study is resumed (Optuna issue 3255), so
    the seed is mixed with the number of trials that the study already holds.

    benchmarks/samplers.py compares it with random search, NSGA-II and multivariate TPE.
    """
    mixed = np.random.SeedSequence([seed, trials_so_far]).generate_state(1)
    return TPESampler(
        seed=int(mixed[0]),
        n_startup_trials=max(_RANDOM_TRIALS, population),
        multivariate=False,
        constant_liar=True,
    )

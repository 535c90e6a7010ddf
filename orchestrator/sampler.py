"""The sampler of a study, made afresh at each launch."""

from __future__ import annotations

import numpy as np
from optuna.samplers import BaseSampler, TPESampler

_RANDOM_TRIALS = 8
"""Random trials before TPE models the outcome."""


def make_sampler(seed: int, trials_so_far: int, population: int, worker: int = 0) -> BaseSampler:
    """Two-objective TPE; a batch of asks is spread, as running trials count as bad (constant liar).

    A sampler with a fixed seed repeats its draws when a study is resumed or a worker joins (Optuna
    issue 3255), so the seed is mixed with the number of trials that the study already holds and
    with the worker's own number.

    benchmarks/samplers.py compares it with random search, NSGA-II and multivariate TPE.
    """
    entropy = [seed, trials_so_far, *([worker] if worker else [])]  # 0: as before workers
    mixed = np.random.SeedSequence(entropy).generate_state(1)
    return TPESampler(
        seed=int(mixed[0]),
        n_startup_trials=max(_RANDOM_TRIALS, population),
        multivariate=False,
        constant_liar=True,
    )

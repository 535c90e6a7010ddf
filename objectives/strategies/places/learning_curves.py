"""Where a learning curve leads: a power law, with its uncertainty.

    score(t) = limit - a t^-c + noise

is the law with which curves are extrapolated (pow3 of Domhan et al. 2015), in order to stop a
training whose end is foreseen; LCBench (Zimmer et al. 2021) is a benchmark of such predictions. For
a given c it is linear, so that limit, a and the variance of the noise have a posterior in closed
form (flat priors, and an inverse gamma one) and the prediction is a Student's t. Predictions for a
row of c are mixed by the probabilities of the curve under each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import t as student

from objectives.errors import UserError

_EXPONENTS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
_PRIOR_SHAPE, _PRIOR_SCALE = 1.0, 1e-3  # noise of about 3% of the range of the curve
_LEAST_POINTS = 3


@dataclass(frozen=True, eq=False)
class Prediction:
    """A mixture of Student's t distributions."""

    chances: NDArray[np.float64]
    """Of each exponent, given the curve, (exponents,); they sum to 1."""
    means: NDArray[np.float64]
    scales: NDArray[np.float64]
    freedom: float
    """Degrees of freedom, > 2."""

    @property
    def mean(self) -> float:
        """The expected score."""
        return float(self.chances @ self.means)

    @property
    def std(self) -> float:
        """Standard deviation of the score, noise included."""
        within = self.scales**2 * self.freedom / (self.freedom - 2)
        return math.sqrt(float(self.chances @ (within + (self.means - self.mean) ** 2)))

    def chance_above(self, score: float) -> float:
        """Probability of a higher score."""
        return float(self.chances @ student.sf((score - self.means) / self.scales, self.freedom))


def extrapolated(steps: Sequence[float], scores: Sequence[float], at: float) -> Prediction:
    """The score at step `at`.

    Args:
        steps: of the curve, > 0; at least three.
        scores: as many.
        at: a step > 0, mostly a later one.

    Raises:
        UserError: for fewer points, or for steps that are not > 0.
    """
    if len(set(steps)) < _LEAST_POINTS or min(steps) <= 0 or at <= 0:
        raise UserError(
            f"cannot extrapolate a curve of {len(steps)} points from step {min(steps, default=0)} "
            f"to step {at}; give at least {_LEAST_POINTS} points, and steps > 0"
        )
    values, unit = np.asarray(scores, float), min(steps)
    start, rise = values[0], float(np.ptp(values)) or 1.0
    y = (values - start) / rise
    evidence, means, scales = [], [], []
    shape = _PRIOR_SHAPE + len(y) / 2 - 1
    for exponent in _EXPONENTS:
        # Of the rise within the curve: 0 at its first step, 1 at its last one.
        powers = 1 - (np.array([*steps, at]) / unit) ** -exponent
        *rows, x = np.stack([np.ones(len(powers)), powers / powers[:-1].max()], 1)
        X = np.array(rows)
        precision = X.T @ X
        coefficients = np.linalg.solve(precision, X.T @ y)
        rest = _PRIOR_SCALE + max(0.0, float(y @ y - coefficients @ precision @ coefficients)) / 2
        evidence.append(-shape * math.log(rest) - np.linalg.slogdet(precision)[1] / 2)
        means.append(start + rise * float(x @ coefficients))
        leverage = float(x @ np.linalg.solve(precision, x))
        scales.append(rise * math.sqrt(rest / shape * (1 + leverage)))
    chances = np.exp(np.array(evidence) - logsumexp(evidence))
    return Prediction(chances, np.array(means), np.array(scales), 2 * shape)


def goes_on(
    steps: Sequence[float], scores: Sequence[float], end: float, best: float, least: float = 0.05
) -> bool:
    """Whether a training is worth going on with: the probability that its score at step `end` is
    above the best so far is at least `least` (Domhan et al. 2015). Too short a curve goes on."""
    return (
        len(steps) < _LEAST_POINTS or extrapolated(steps, scores, end).chance_above(best) >= least
    )

"""Recorded trials as a quick objective: what a trial of any knobs would report.

No recorded trial has the knobs that a sampler asks for, so models of the recorded ones answer. The
nearest says whether the cut leaves anything that learns; where the FLOPs weight is high it may not,
and such a trial answers the commonest label from its first step to its last. For all others a
Gaussian process for each quarter of the training gives the mean there, and one recorded trial drawn
at random the residuals of all quarters, so that the errors along a curve hang together as in real
ones. The ratio is the target ratio, which recorded trials met to about a thousandth.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

Floats = NDArray[np.float64]


class Replay:
    """The objective that was recorded."""

    def __init__(self, path: Path):
        document = json.loads(path.read_text())
        trials = document["trials"]
        self.trials = len(trials)
        self.unpruned: float = document["unpruned"]
        knobs = np.array([encode(trial["knobs"]) for trial in trials])
        self.metrics = np.array([trial["metrics"] for trial in trials])
        """(trials, quarters)."""
        self.ratio_error = max(abs(t["ratio"] / t["knobs"]["target_ratio"] - 1) for t in trials)
        self.outside = sum(t["violation"] > 0 for t in trials)

        self.floor = float(self.metrics.min())
        """The metric of what never learns."""
        self.learns = self.metrics.max(axis=1) > self.floor
        """(trials,) bool."""
        self._learns = KNeighborsClassifier(1)
        guessed = cross_val_predict(self._learns, knobs, self.learns, cv=LeaveOneOut())
        self.misjudged = int(np.sum(guessed != self.learns))
        """Trials of which the others say wrongly whether they learn."""
        self._learns.fit(knobs, self.learns)

        self._processes, residuals = [], []
        for column in self.metrics[self.learns].T:
            kernel = ConstantKernel() * RBF(np.ones(knobs.shape[1]), (0.1, 100)) + WhiteKernel(0.1)
            process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=3)
            process.random_state = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a knob that does not matter
                process.fit(knobs[self.learns], column)
            self._processes.append(process)
            residuals.append(_left_out(process, column))
        self.residuals: Floats = np.array(residuals).T
        """(trials that learn, quarters): each beside what the others say of it."""

    @property
    def worst(self) -> float:
        """The least final metric of a trial that learns: where hypervolumes begin."""
        return float(self.metrics[self.learns, -1].min())

    @property
    def spread(self) -> float:
        """Standard deviation of the final metric of the trials that learn."""
        return float(np.std(self.metrics[self.learns, -1]))

    @property
    def error(self) -> float:
        """Root mean square of that metric beside what the other trials say of it."""
        return float(np.sqrt(np.mean(self.residuals[:, -1] ** 2)))

    def curve(self, knobs: dict[str, Any], noise: np.random.Generator) -> tuple[Floats, float]:
        """The metric at each quarter, of one trial, and what it is at the end on the average."""
        point = np.array([encode(knobs)])
        residuals = self.residuals[noise.integers(len(self.residuals))]
        if not self._learns.predict(point)[0]:
            return np.full(len(residuals), self.floor), self.floor
        mean = np.array([process.predict(point)[0] for process in self._processes])
        return mean + residuals, float(mean[-1])


def encode(knobs: dict[str, Any]) -> list[float]:
    """Knobs as numbers of like size."""
    return [
        math.log(knobs["target_ratio"]),
        math.log(knobs["flops_weight"]),
        math.log(knobs["batch_size"]) / 2,
        float(knobs["squares"] == "loss"),
    ]


def _left_out(process: GaussianProcessRegressor, values: Floats) -> Floats:
    """Each value less what a process through all others predicts there (Rasmussen 2006, 5.12)."""
    scale, centre = process._y_train_std, process._y_train_mean
    inverse = np.linalg.inv(process.L_ @ process.L_.T)
    standard = (values - centre) / scale
    residuals: Floats = inverse @ standard / np.diag(inverse) * scale
    return residuals

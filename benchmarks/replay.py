"""Recorded trials as a quick objective: what a trial of any knobs would report.

For each quarter of the training a Gaussian process through the recorded metrics; a trial gets its
mean there plus the residuals of one recorded trial, drawn at random, so that the errors along a
curve hang together as in real ones.
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
        self._processes, residuals = [], []
        for column in self.metrics.T:
            kernel = ConstantKernel() * RBF(np.ones(knobs.shape[1]), (0.1, 100)) + WhiteKernel(0.1)
            process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=3)
            process.random_state = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a knob that does not matter
                process.fit(knobs, column)
            self._processes.append(process)
            residuals.append(_left_out(process, column))
        self.residuals: Floats = np.array(residuals).T
        """(trials, quarters): each trial beside what the others say of it."""

    @property
    def error(self) -> float:
        """Root mean square of the final metric beside what the other trials say of it."""
        return float(np.sqrt(np.mean(self.residuals[:, -1] ** 2)))

    def mean(self, knobs: dict[str, Any]) -> Floats:
        """The expected metric at each quarter."""
        point = np.array([encode(knobs)])
        return np.array([process.predict(point)[0] for process in self._processes])

    def curve(self, knobs: dict[str, Any], noise: np.random.Generator) -> Floats:
        """The metric at each quarter, of one trial."""
        metrics: Floats = self.mean(knobs) + self.residuals[noise.integers(self.trials)]
        return metrics


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

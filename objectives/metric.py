"""The metrics of the tasks. Imports no torch, for reports."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Labels: TypeAlias = NDArray[np.int64 | np.float32]
"""One label a row: int64, the index of a class; or float32, a number (regression)."""

Logits: TypeAlias = NDArray[np.float32]
"""Of a model, (rows, C)."""
Metric = Literal["accuracy", "mcc", "f1", "pearson_spearman", "agreement"]


def metric_value(metric: Metric, labels: Labels, predictions: Labels, *, classes: int = 2) -> float:
    """The metric of predicted labels; higher is better. NaN if a predicted number is not finite.
    `classes` are those of the task, whichever of them occur: F1 is that of class 1 of two, of more
    the mean over those that occur."""
    if metric in ("accuracy", "agreement"):
        return float(np.mean(labels == predictions))
    from sklearn import metrics  # a second, which a study that is only defined need not wait for

    if metric == "mcc":
        return float(metrics.matthews_corrcoef(labels, predictions))
    if metric == "pearson_spearman":
        if not np.isfinite(predictions).all():
            return float("nan")
        from scipy.stats import rankdata

        pearson = _correlation(labels, predictions)
        return (pearson + _correlation(rankdata(labels), rankdata(predictions))) / 2
    average = "binary" if classes == 2 else "macro"
    return float(metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def _correlation(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Pearson's; 0 if either is constant (as Matthews'), where it is not defined."""
    if not np.ptp(one) or not np.ptp(other):
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])

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
    if metric == "pearson_spearman":
        if not np.isfinite(predictions).all():
            return float("nan")
        places = (np.unique(side, return_inverse=True)[1] for side in (labels, predictions))
        ranked = (ranks(places_N[None]) for places_N in places)
        pearson, spearman = correlations(labels[None], predictions[None]), correlations(*ranked)
        return float(pearson[0] + spearman[0]) / 2
    from sklearn import metrics  # a second, which a study that is only defined need not wait for

    if metric == "mcc":
        return float(metrics.matthews_corrcoef(labels, predictions))
    average = "binary" if classes == 2 else "macro"
    return float(metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def ranks(places_RN: NDArray[np.int64]) -> NDArray[np.float64]:
    """The ranks, (R, N) from 1, of numbers that are known by their places among the distinct ones;
    equal numbers of a row share the mean of theirs."""
    rows, values = len(places_RN), int(places_RN.max()) + 1
    apart = places_RN + values * np.arange(rows)[:, None]
    counts = np.bincount(apart.ravel(), minlength=rows * values).reshape(rows, values)
    return np.asarray(np.take_along_axis(counts.cumsum(1) - (counts - 1) / 2, places_RN, axis=1))


def correlations(one_RN: NDArray[Any], other_RN: NDArray[Any]) -> NDArray[np.float64]:
    """Pearson's of each row, (R,); 0 if a side is constant (as Matthews'), where it is not
    defined."""
    constant = np.zeros(len(one_RN), dtype=bool)
    centred = []
    for side in (one_RN, other_RN):
        constant |= (side == side[:, :1]).all(1)
        centred.append(side - side.mean(1, dtype=np.float64, keepdims=True))
    one, other = centred
    both = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    agreed = (one * other).sum(1)
    return np.asarray(np.divide(agreed, both, out=np.zeros_like(both), where=~constant))

"""Metrics of tasks. Imports no torch, for reports."""

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Labels: TypeAlias = NDArray[np.int64 | np.float32 | np.int8]
"""Labels (rows,): int64, the index of a class, or float32, a number (regression). Several labels a
row are (rows, C) int8: 1 where the row has the label, 0 where it has not."""

Logits: TypeAlias = NDArray[np.float32]
"""Logits (rows, C) of a model."""
Floats: TypeAlias = NDArray[np.float64]
Metric = Literal["accuracy", "mcc", "f1", "micro_f1", "macro_f1", "pearson_spearman", "agreement"]


OF_CLASSES: tuple[Metric, ...] = ("accuracy", "macro_f1", "mcc", "f1")
"""Metrics of one class a text against labels."""


def metric_value(metric: Metric, labels: Labels, predictions: Labels, *, classes: int = 2) -> float:
    """Metric of predicted labels; higher is better. NaN if a predicted number is not finite.
    `classes` is the number of the task's classes, even of those that do not occur."""
    # F1 is that of class 1 of two, of more the mean over those that occur. Of rows with several
    # labels all must be right to be accurate; micro F1 counts them together, macro F1 is the mean
    # over all labels.
    if metric in ("accuracy", "agreement"):
        same = labels == predictions
        return float(np.mean(same if same.ndim == 1 else same.all(1)))
    if metric == "pearson_spearman":
        return float(correlations(labels, predictions, np.ones((1, len(labels))))[0])
    from sklearn import metrics  # a second, which a study that is only defined need not wait for

    if metric == "mcc":
        return float(metrics.matthews_corrcoef(labels, predictions))
    average = "binary" if classes == 2 else "macro"
    if metric != "f1":
        average = metric.removesuffix("_f1")
    return float(metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def correlations(labels: Labels, predictions: Labels, often_RN: NDArray[Any]) -> Floats:
    """Mean of Pearson's and Spearman's correlation, (R,); NaN if a prediction is not finite."""
    if not np.isfinite(predictions).all():
        return np.full(len(often_RN), np.nan)
    ranked = (_ranks(side, often_RN) for side in (labels, predictions))
    return (_pearson(often_RN, labels, predictions) + _pearson(often_RN, *ranked)) / 2


def _ranks(side: Labels, often_RN: NDArray[Any]) -> Floats:
    """Mean ranks of each sample's rows, (R, N): counted, as to sort takes ten times as long."""
    order = np.argsort(side, kind="stable")
    group_of_row = np.unique(side, return_inverse=True)[1]
    first = np.unique(side[order], return_index=True)[1]
    sizes_RG = np.add.reduceat(often_RN[:, order], first, axis=1, dtype=np.float64)
    return np.asarray((sizes_RG.cumsum(1) - sizes_RG / 2)[:, group_of_row])


def _pearson(often_RN: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> Floats:
    """Pearson's correlation of each sample, (R,), of sides (N,) or (R, N); 0 if one is constant."""
    constant = np.zeros(len(often_RN), dtype=bool)
    rows, centred = often_RN.sum(1, dtype=np.float64, keepdims=True), []
    for side in (one, other):
        ends = (np.where(often_RN > 0, side, far) for far in (np.inf, -np.inf))
        constant |= next(ends).min(1) == next(ends).max(1)
        centred.append(side - (often_RN * side).sum(1, dtype=np.float64, keepdims=True) / rows)
    one_RN, other_RN = centred
    both = np.sqrt((often_RN * one_RN**2).sum(1) * (often_RN * other_RN**2).sum(1))
    agreed = (often_RN * one_RN * other_RN).sum(1)
    return np.asarray(np.divide(agreed, both, out=np.zeros_like(both), where=~constant))

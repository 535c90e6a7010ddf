"""The metrics of the tasks. Imports no torch, for reports."""

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Labels: TypeAlias = NDArray[np.int64 | np.float32 | np.int8]
"""One label a row, (rows,): int64, the index of a class; or float32, a number (regression). Or
several, (rows, C) int8: 1 where the row has the label, 0 where it has not."""

Logits: TypeAlias = NDArray[np.float32]
"""Of a model, (rows, C)."""
Metric = Literal["accuracy", "mcc", "f1", "micro_f1", "macro_f1", "pearson_spearman", "agreement"]


def metric_value(metric: Metric, labels: Labels, predictions: Labels, *, classes: int = 2) -> float:
    """The metric of predicted labels; higher is better. NaN if a predicted number is not finite.
    `classes` are those of the task, whichever of them occur: F1 is that of class 1 of two, of more
    the mean over those that occur. Of rows with several labels all must be right to be accurate;
    micro F1 counts them together, macro F1 is the mean over all labels."""
    if metric in ("accuracy", "agreement"):
        same = labels == predictions
        return float(np.mean(same if same.ndim == 1 else same.all(1)))
    if metric == "pearson_spearman":
        if not np.isfinite(predictions).all():
            return float("nan")
        return float(pearson_spearman(labels[None], predictions[None])[0])
    from sklearn import metrics  # a second, which a study that is only defined need not wait for

    if metric == "mcc":
        return float(metrics.matthews_corrcoef(labels, predictions))
    average = "binary" if classes == 2 else "macro"
    if metric != "f1":
        average = metric.removesuffix("_f1")
    return float(metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def pearson_spearman(labels_RN: Labels, predictions_RN: Labels) -> NDArray[np.float64]:
    """The mean of Pearson's and Spearman's correlation of each row, (R,)."""
    from scipy.stats import rankdata

    ranked = (rankdata(side, axis=1) for side in (labels_RN, predictions_RN))
    return (_correlations(labels_RN, predictions_RN) + _correlations(*ranked)) / 2


def _correlations(one_RN: NDArray[Any], other_RN: NDArray[Any]) -> NDArray[np.float64]:
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

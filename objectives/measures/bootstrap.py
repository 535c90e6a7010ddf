"""How sure a metric is: an interval by the bootstrap over the rows of its split."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from objectives.metric import Labels, Metric, metric_value, pearson_spearman

RESAMPLES = 500
FEWEST = 5
"""Rows of a class that a bootstrap can say something of."""
_LEVEL = 0.95
_AT_ONCE = 2**18
"""Drawn rows that are held at once."""

Interval = tuple[float, float]
"""Lower and upper end."""

Floats = NDArray[np.float64]
"""(R,) the metric on each sample; (R, C) how often each draws each class."""


@dataclass(frozen=True)
class Worth:
    """What answers are worth by the task's metric."""

    metric: float
    """On the selection split: what a study sees."""
    interval: Interval
    """95% bootstrap interval of `metric` over the rows of its split."""
    heldout_metric: float
    """On the held-out split: what no search ever saw."""
    heldout_interval: Interval


def bootstrap_interval(
    metric: Metric, labels: Labels, predictions: Labels, classes: int = 2
) -> Interval:
    """The 95% percentile interval (Efron 1979) of the metric, rows drawn with replacement. It says
    what another sample of as many rows could have given, and nothing of another training seed.
    Models of one split meet the same samples: see `resampled_metrics`.

    Rows of a rare class, drawn again, say nothing of its others. So in a mean over C classes each
    that has fewer than `FEWEST` rows adds the variance of an F1 of which nothing is known, 1/12 as
    it is uniform in [0, 1], over C squared."""
    values = resampled_metrics(metric, labels, predictions, classes)
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    if more := _of_rare_classes(metric, labels, predictions, classes):
        value = metric_value(metric, labels, predictions, classes=classes)
        low, high = value - np.hypot(value - low, more), value + np.hypot(high - value, more)
        low, high = max(low, 0.0), min(high, 1.0)
    return float(low), float(high)


def _of_rare_classes(metric: Metric, labels: Labels, predictions: Labels, classes: int) -> float:
    """Half the width of the interval that a mean over classes has by the rare ones alone."""
    if metric != "macro_f1" and (metric, classes > 2) != ("f1", True):
        return 0.0
    if labels.ndim == 2:
        rows = labels.sum(0, dtype=np.int64)
    else:
        rows = (labels[:, None] == np.unique([labels, predictions])).sum(0)
    rare = np.count_nonzero((rows > 0) & (rows < FEWEST))
    sure = NormalDist().inv_cdf((1 + _LEVEL) / 2)
    return float(sure * np.sqrt(rare / 12) / len(rows))


def resampled_metrics(
    metric: Metric, labels: Labels, predictions: Labels, classes: int = 2
) -> Floats:
    """The metric on each sample of the bootstrap, (500,); `classes` are those of the task. Sample i
    is made of the same rows at every call: the differences of what two models of one split get are
    those of a paired bootstrap."""
    generator = np.random.default_rng(0)
    rows = len(labels)
    draws = (generator.integers(rows, size=rows) for _ in range(RESAMPLES))
    if metric in ("accuracy", "agreement"):
        right = labels == predictions
        right = right if right.ndim == 1 else right.all(1)
        return np.array([right[drawn].mean() for drawn in draws])
    if metric == "pearson_spearman":
        return _pearson_spearman(labels, predictions, draws)
    if labels.ndim == 2:
        return _f1_of_several(labels, predictions, draws, micro=metric == "micro_f1")
    # The others know a row by its label and prediction alone: that is, by how often each pair of
    # them was drawn. A call of scikit-learn for each sample takes 20 to 150 times as long.
    pairs, pair_of_row = np.unique(np.stack([labels, predictions]), axis=1, return_inverse=True)
    counts = [np.bincount(pair_of_row[drawn], minlength=pairs.shape[1]) for drawn in draws]
    counts_RP = np.array(counts, dtype=np.float64)  # whole numbers, as floats are multiplied faster
    own = np.unique(pairs)
    truth_PC, said_PC = ((side[:, None] == own).astype(np.float64) for side in pairs)
    of_class_RC, said_RC = counts_RP @ truth_PC, counts_RP @ said_PC
    right_RC = counts_RP @ (truth_PC * said_PC)
    if metric == "mcc":
        return _matthews(of_class_RC, said_RC, right_RC.sum(1))
    return _f1(of_class_RC, said_RC, right_RC, own if (metric, classes) == ("f1", 2) else None)


def _pearson_spearman(
    labels: Labels, predictions: Labels, draws: Iterator[NDArray[np.int64]]
) -> Floats:
    """As `metric_value` has it, of each sample, some at once: one by one they take 20 times as long
    where rows are few."""
    if not np.isfinite(predictions).all():
        return np.full(RESAMPLES, np.nan)
    found = []
    while some := list(islice(draws, max(1, _AT_ONCE // len(labels)))):
        drawn_RN = np.stack(some)
        found.append(pearson_spearman(labels[drawn_RN], predictions[drawn_RN]))
    return np.concatenate(found)


def _f1_of_several(
    labels: Labels, predictions: Labels, draws: Iterator[NDArray[np.int64]], *, micro: bool
) -> Floats:
    """Micro or macro F1 of each sample of rows with several labels; 0 of a label that is neither
    there nor said, as scikit-learn has it."""
    both, either = labels * predictions, labels.astype(np.int64) + predictions
    found = []
    for drawn in draws:
        twice_C, either_C = 2.0 * both[drawn].sum(0), either[drawn].sum(0)
        if micro:
            twice_C, either_C = twice_C.sum(keepdims=True), either_C.sum(keepdims=True)
        f1_C = np.divide(twice_C, either_C, out=np.zeros(len(twice_C)), where=either_C > 0)
        found.append(f1_C.mean())
    return np.array(found)


def _matthews(of_class_RC: Floats, said_RC: Floats, right_R: Floats) -> Floats:
    """Matthews' correlation of each sample (Gorodkin 2004, for any number of classes); 0 where it
    is not defined, as all rows have one label or one prediction."""
    rows = of_class_RC.sum(1)
    of_class, said = (rows**2 - (side**2).sum(1) for side in (of_class_RC, said_RC))
    both = np.sqrt(of_class * said)
    agreed = rows * right_R - (of_class_RC * said_RC).sum(1)
    return np.asarray(np.divide(agreed, both, out=np.zeros_like(both), where=both > 0))


def _f1(of_class_RC: Floats, said_RC: Floats, right_RC: Floats, binary: Labels | None) -> Floats:
    """F1 of each sample: of class 1, if `binary` names the classes, else the mean over them."""
    either = of_class_RC + said_RC
    f1_RC = np.divide(2 * right_RC, either, out=np.zeros(either.shape), where=either > 0)
    if binary is not None:
        return np.asarray(f1_RC @ (binary == 1))
    occurring = np.count_nonzero(either, axis=1)  # a class that a sample lacks is no class of it
    return np.asarray(f1_RC.sum(1) / occurring)

"""Confidence intervals of metrics, by the bootstrap over the rows of a split."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.errors import Finite
from objectives.metric import Floats, Labels, Metric, correlations, metric_value

RESAMPLES = 500
FEWEST = 5
"""Fewest rows of a class for which a bootstrap is meaningful."""
_LEVEL = 0.95
_AT_ONCE, _COLUMNS = 2**18, 2**23
"""Numbers in memory at once: drawn rows, and the terms that several models add to their sums."""
_KEPT = 2**23
"""Draws that are cached for the next call: 32 MB."""

Interval = tuple[float, float]
"""Lower and upper end."""


@dataclass(frozen=True)
class Worth:
    """Scores of a model by the task's metric."""

    metric: Finite
    """Metric on the selection split, which a study sees."""
    interval: Interval
    """95% bootstrap interval of `metric` over the rows of its split."""
    heldout_metric: float
    """Metric on the held-out split, which no search ever saw."""
    heldout_interval: Interval


def bootstrap_interval(
    metric: Metric, labels: Labels, predictions: Labels, classes: int = 2
) -> Interval:
    """95% percentile interval (Efron 1979) of the metric over rows drawn with replacement. It
    covers other samples of as many rows, not other training seeds."""
    values = resampled_metrics(metric, labels, predictions, classes)
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    # Rows of a rare class, drawn again, say nothing of its others. So in a mean over C classes each
    # that has fewer than `FEWEST` rows adds the variance of an F1 of which nothing is known, 1/12
    # as it is uniform in [0, 1], over C squared.
    if more := _of_rare_classes(metric, labels, predictions, classes):
        value = metric_value(metric, labels, predictions, classes=classes)
        low, high = value - np.hypot(value - low, more), value + np.hypot(high - value, more)
        low, high = max(low, 0.0), min(high, 1.0)
    return float(low), float(high)


def _of_rare_classes(metric: Metric, labels: Labels, predictions: Labels, classes: int) -> float:
    """Half-width of the interval that rare classes alone cause in a mean over classes."""
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
    """Metric on each bootstrap sample, (500,). Sample i has the same rows at every call, so that
    differences between models are paired. `classes` is the number of the task's classes."""
    (values,) = resampled_together(metric, labels, [predictions], classes)
    return np.asarray(values)


def resampled_together(
    metric: Metric, labels: Labels, models: Sequence[Labels], classes: int
) -> Floats:
    """`resampled_metrics` of several models, (M, 500), on samples drawn once for many of them."""
    values: list[Floats] = []
    if metric == "pearson_spearman":
        for predictions in models:
            drawn = _drawn(len(labels))
            values.append(
                np.concatenate([correlations(labels, predictions, part) for part in drawn])
            )
        return np.stack(values)
    # The others are decided by sums over rows, so by how often a sample has each row: a product.
    at_once = max(1, _COLUMNS // labels.size)
    for start in range(0, len(models), at_once):
        some = models[start : start + at_once]
        columns = [_columns(metric, labels, predictions) for predictions in some]
        ends = np.cumsum([part.shape[1] for part in columns])
        columns_NK = np.concatenate(columns, axis=1, dtype=np.float32)  # whole numbers: exact
        sums_RK = np.concatenate([drawn @ columns_NK for drawn in _drawn(len(labels))])
        for own_RK, predictions in zip(np.split(sums_RK, ends[:-1], axis=1), some, strict=True):
            values.append(_value(metric, own_RK.astype(np.float64), labels, predictions, classes))
    return np.stack(values)


def _drawn(rows: int) -> Iterable[NDArray[np.float32]]:
    """Counts of each row in each sample, (samples, rows), some samples at once."""
    return _kept_draws(rows) if rows * RESAMPLES <= _KEPT else _draws(rows)


@lru_cache(maxsize=2)
def _kept_draws(rows: int) -> tuple[NDArray[np.float32], ...]:
    """Cached draws for the selection and the held-out rows, as each trial of a study needs them."""
    return tuple(_draws(rows))


def _draws(rows: int) -> Iterator[NDArray[np.float32]]:
    generator, at_once = np.random.default_rng(0), max(1, _AT_ONCE // rows)
    for start in range(0, RESAMPLES, at_once):
        draws = [generator.integers(rows, size=rows) for _ in range(RESAMPLES)[start:][:at_once]]
        yield np.stack([np.bincount(drawn, minlength=rows) for drawn in draws]).astype(np.float32)


def _columns(metric: Metric, labels: Labels, predictions: Labels) -> NDArray[Any]:
    """Terms of each row in the sums that decide the metric, (rows, K)."""
    if metric in ("accuracy", "agreement"):
        same = labels == predictions
        return np.asarray(same.reshape(len(labels), -1).all(1, keepdims=True))
    if labels.ndim == 2:
        return np.hstack([labels * predictions, labels + predictions])
    present = np.unique([labels, predictions])
    truth_NC, said_NC = (side[:, None] == present for side in (labels, predictions))
    return np.hstack([truth_NC, said_NC, truth_NC & said_NC])


def _value(
    metric: Metric, sums_RK: Floats, labels: Labels, predictions: Labels, classes: int
) -> Floats:
    """The metric of each sample, from its sums of `_columns`."""
    if metric in ("accuracy", "agreement"):
        return sums_RK[:, 0] / len(labels)
    if labels.ndim == 2:
        both_RC, either_RC = np.split(sums_RK, 2, axis=1)
        if metric == "micro_f1":
            both_RC, either_RC = (present.sum(1, keepdims=True) for present in (both_RC, either_RC))
        # 0 of a label that is neither there nor said, as scikit-learn has it.
        f1_RC = np.divide(2 * both_RC, either_RC, out=np.zeros_like(both_RC), where=either_RC > 0)
        return np.asarray(f1_RC.mean(1))
    of_class_RC, said_RC, right_RC = np.split(sums_RK, 3, axis=1)
    if metric == "mcc":
        return _matthews(of_class_RC, said_RC, right_RC.sum(1))
    present = np.unique([labels, predictions])
    return _f1(of_class_RC, said_RC, right_RC, present if (metric, classes) == ("f1", 2) else None)


def _matthews(of_class_RC: Floats, said_RC: Floats, right_R: Floats) -> Floats:
    """Matthews' correlation of each sample (Gorodkin 2004); 0 where it is not defined."""
    rows = of_class_RC.sum(1)
    of_class, predicted = (rows**2 - (side**2).sum(1) for side in (of_class_RC, said_RC))
    both = np.sqrt(of_class * predicted)
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

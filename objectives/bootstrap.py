"""How sure a metric is: an interval by the bootstrap over the rows of its split."""

from __future__ import annotations

import numpy as np

from objectives.data import Labels
from objectives.task import Metric, metric_value

_RESAMPLES = 500
_LEVEL = 0.95

Interval = tuple[float, float]
"""Lower and upper end."""


def bootstrap_interval(metric: Metric, labels: Labels, predictions: Labels) -> Interval:
    """The 95% percentile interval (Efron 1979) of the metric, rows drawn with replacement.

    It says what another sample of as many rows could have given, and nothing of another training
    seed. The draws are the same at every call, so that models of one split meet the same samples.
    """
    generator = np.random.default_rng(0)
    rows = len(labels)
    if metric == "pearson_spearman":
        draws = generator.integers(rows, size=(_RESAMPLES, rows))
        values = [metric_value(metric, labels[drawn], predictions[drawn]) for drawn in draws]
    else:
        # The metric knows rows by label and prediction alone: drawing rows is drawing from these.
        pairs, counts = np.unique(np.stack([labels, predictions]), axis=1, return_counts=True)
        weights = generator.multinomial(rows, counts / rows, size=_RESAMPLES)
        if metric == "accuracy":  # 0.1 s less than one call for each draw
            values = list((weights @ (pairs[0] == pairs[1])) / rows)
        else:
            values = [metric_value(metric, pairs[0], pairs[1], weight) for weight in weights]
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)

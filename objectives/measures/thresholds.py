"""Thresholds for several labels a text, chosen on the selection split. Imports no torch."""

# Each label's threshold is the cut between two rows that is best for the F1 of the task (SCut, Yang
# 2001, "A study of thresholding strategies for text categorization"). Chosen so, the selection rows
# flatter the model. So each of them is judged by thresholds that the other four fifths choose, and
# the held-out rows by those of all, which the saved model has.

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from objectives.metric import Labels, Logits, Metric

FEWEST = 10
"""Fewest selection rows with a label that choose its threshold; else that is probability 0.5."""
_PARTS = 5
_FARTHEST = 15.0
"""Largest distance from logit 0: probabilities beyond round to 0 or 1."""

Thresholds = NDArray[np.float64]
"""Thresholds (C,) as logits."""


def chosen(metric: Metric, labels: Labels, logits: Logits) -> Thresholds:
    """Best thresholds for rows (rows, C) by macro or micro F1; of equal ones those nearest to 0."""
    order = np.argsort(-logits, axis=0, kind="stable")
    falling = np.take_along_axis(logits.astype(np.float64), order, 0)
    ends = np.full((1, logits.shape[1]), np.inf)
    edges = np.concatenate([ends, falling, -ends])
    # Cut k says that the k highest rows have the label; it must lie between unequal logits.
    right_NC = np.take_along_axis(labels, order, 0).cumsum(0, np.int64)
    twice_KC = 2 * np.pad(right_NC, ((1, 0), (0, 0)))
    true_C = labels.sum(0, dtype=np.int64)
    both_KC = np.arange(len(edges) - 1)[:, None] + true_C
    half_C = (logits > 0).sum(0)
    apart_KC = edges[:-1] > edges[1:]
    apart_KC[:, true_C < FEWEST] = False
    far_KC = np.abs(np.arange(len(both_KC))[:, None] - half_C)
    each = np.arange(logits.shape[1])
    apart_KC[half_C, each] = True

    def best(worth_KC: NDArray[np.float64]) -> NDArray[np.int64]:
        worth_KC = np.where(apart_KC, worth_KC, -np.inf)
        ties = np.isclose(worth_KC, worth_KC.max(0), rtol=0, atol=1e-12)
        return np.asarray(np.where(ties, far_KC, len(edges)).argmin(0))

    # Macro F1 is best where the F1 of each label is. Micro F1 is a ratio of two sums over labels,
    # so these are chosen for 2 TP - f (said + true), f the micro F1 so far, until it rises no more
    # (Dinkelbach 1967).
    if metric == "macro_f1":
        cuts = best(twice_KC / np.maximum(both_KC, 1))
    else:
        cuts, before = half_C, -1.0
        while (f1 := twice_KC[cuts, each].sum() / max(1, both_KC[cuts, each].sum())) > before:
            cuts, before = best(twice_KC - f1 * both_KC), f1
    low, high = (edges[cuts + side, each].clip(-_FARTHEST, _FARTHEST) for side in (1, 0))
    return np.asarray(np.where(cuts == half_C, 0.0, (low + high) / 2))


def cross_fitted(metric: Metric, labels: Labels, logits: Logits) -> Logits:
    """Logits (rows, C) less thresholds of the other four fifths of rows: above 0 is predicted."""
    left = logits.copy()
    parts = np.arange(len(labels)) % _PARTS
    for part in range(_PARTS):
        inside, others = parts == part, parts != part
        left[inside] -= chosen(metric, labels[others], logits[others]).astype(np.float32)
    return left


def decided(
    metric: Metric,
    labels: Labels,
    logits: Mapping[str, Logits],
    thresholds: Thresholds | None = None,
) -> tuple[dict[str, Logits], Thresholds]:
    """Logits of "select", `cross_fitted`, and of "heldout", less the thresholds that all selection
    rows choose, or those given; and these thresholds. `labels` are the selection rows'."""
    select, heldout = logits["select"], logits["heldout"]
    chosen_thresholds = chosen(metric, labels, select) if thresholds is None else thresholds
    left = (heldout - chosen_thresholds).astype(np.float32)
    return {"select": cross_fitted(metric, labels, select), "heldout": left}, chosen_thresholds


def as_probabilities(thresholds: Thresholds) -> list[float]:
    """Probabilities above which each label is present."""
    shares: list[float] = (1 / (1 + np.exp(-thresholds))).tolist()
    return shares


def from_probabilities(shares: list[float] | None) -> Thresholds | None:
    """Thresholds from the probabilities in a model's configuration, if it has any."""
    if shares is None:
        return None
    odds = np.array(shares)
    return np.asarray(np.log(odds / (1 - odds)))

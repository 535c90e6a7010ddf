"""How a model is chosen within a loss, and how much better the chosen one looks than it is.

Whoever takes the first of many models that looks good enough takes a lucky one. How lucky is told
by the bootstrap (Efron 1983): on each sample of the selection rows the same choice is made again,
and what it takes looks better there than on all selection rows. By 1/sqrt(2) of what is wanted, if
the models are equal: their metrics on a sample have twice the variance, that of the sample and that
of the selection rows, and half of it is known to be luck.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""(M,) of models by rising cost; (M, R) the same on each sample of the bootstrap."""


def cheapest_within(
    lost: Sequence[float], most_lost: Callable[[int], float | None], margin: float
) -> tuple[int, bool] | None:
    """The place of the cheapest model of a front that loses at most a margin, and whether it surely
    does: of the first by rising cost whose upper end, `most_lost` by its place, is within the
    margin, or if there is none of the first that seems to be. None if none seems to be.
    """
    seems = [place for place, one in enumerate(lost) if one <= margin]
    for place in seems:
        most = most_lost(place)
        if most is not None and most <= margin:
            return place, True
    return (seems[0], False) if seems else None


def optimism(
    metrics_M: Floats, samples_MR: Floats, unpruned_R: Floats, wider_M: Floats, loss: float
) -> float:
    """How much higher the metric of the model that `cheapest_within` takes is than on other rows.

    Metrics are those on all selection rows and on samples of them. The upper end of what a model
    loses is wider by `wider_M`; the margin is a share of the unpruned metric.
    """
    gains = []
    for sample_M, unpruned in zip(samples_MR.T, unpruned_R, strict=True):
        cheaper_M = np.maximum.accumulate(np.concatenate([[-np.inf], sample_M[:-1]]))
        front = np.flatnonzero(sample_M > cheaper_M)
        lost = unpruned - sample_M[front]
        most = lost + wider_M[front]
        if found := cheapest_within(lost.tolist(), most.__getitem__, loss * unpruned):
            place = front[found[0]]
            gains.append(sample_M[place] - metrics_M[place])
    return float(np.sqrt(2) * np.mean(gains)) if gains else 0.0

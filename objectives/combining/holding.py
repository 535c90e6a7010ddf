"""Tests of whether a promise still holds: of a share, as answers come in, and of two samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.combining.members import CONFIDENCE, Array

ALARM = 0.001
"""Chance at most that samples from one source count as different, in all tests together."""
_ROWS_OF_PRIOR = 20  # rows that the prior of the share is worth: a few points around the gate
_MOST_ROWS = 1e6  # more are as good as none


def evidence(agreed: Array | int, asked: Array | int, share: float) -> NDArray[np.float64]:
    """Log evidence (2, ...) that the share of all rows is above `share`, and that it is below.

    Each is the log of a nonnegative supermartingale of mean at most 1 where it is not (a mixture of
    likelihood ratios; Robbins 1970). So with whatever stops the asking, it exceeds
    `log(1 / (1 - CONFIDENCE))` with a chance of at most `1 - CONFIDENCE` (Ville 1939).
    """
    from scipy.special import betaln  # half a second, which a page need not wait for
    from scipy.stats import beta

    agreed, asked = np.asarray(agreed), np.asarray(asked)
    prior = _ROWS_OF_PRIOR * share, _ROWS_OF_PRIOR * (1 - share)
    after = prior[0] + agreed, prior[1] + asked - agreed
    ratio = betaln(*after) - betaln(*prior)
    ratio = ratio - agreed * np.log(share) - (asked - agreed) * np.log1p(-share)
    above = beta.logsf(share, *after) - beta.logsf(share, *prior)
    below = beta.logcdf(share, *after) - beta.logcdf(share, *prior)
    return np.stack([ratio + above, ratio + below])


def verdict(agrees: Sequence[bool], share: float) -> bool | None:
    """Whether at least `share` of all rows agree, with 95% confidence; None if too few were asked.

    `agrees` are the answers so far, in the order of a random draw.
    """
    if not agrees:
        return None
    agreed, asked = np.cumsum(agrees), np.arange(1, len(agrees) + 1)
    passed = evidence(agreed, asked, share) >= -np.log(1 - CONFIDENCE)
    rows = np.flatnonzero(passed.any(axis=0))
    return bool(passed[0, rows[0]]) if len(rows) else None


def more_rows(agreed: int, asked: int, share: float) -> int | None:
    """How many more rows would tell, if they agree as those so far; None if a million would not."""
    rows = asked * np.geomspace(1, _MOST_ROWS / asked, 200)
    proven = evidence(agreed / asked * rows, rows, share).max(axis=0) >= -np.log(1 - CONFIDENCE)
    return int(np.ceil(rows[proven.argmax()] - asked)) if proven.any() else None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A share of the texts as it was expected, and now."""

    expected: float
    now: float
    chance: float
    """Chance of so large a difference between two samples from one source."""

    @property
    def alarm(self) -> bool:
        """Whether the difference is no chance; of two tests each has half of `ALARM`."""
        return self.chance < ALARM / 2


def change_of_share(before: tuple[int, int], now: tuple[int, int]) -> Change:
    """Compare two counts, each of some rows, by Fisher's exact test."""
    from scipy.stats import fisher_exact

    table = [[count, rows - count] for count, rows in (before, now)]
    chance = float(fisher_exact(table).pvalue)
    return Change(expected=before[0] / before[1], now=now[0] / now[1], chance=chance)


def change_of_scores(before: Array, now: Array) -> Change:
    """Compare scores of two samples by the test of Kolmogorov and Smirnov; `now` is the share of
    the scores before that one of now exceeds in the mean, half if they are alike."""
    from scipy.stats import ks_2samp

    ordered = np.sort(before)
    below, up_to = (np.searchsorted(ordered, now, side) for side in ("left", "right"))
    share = float((below + up_to).mean() / 2 / len(before))
    # Not "exact": where that fails it warns, and takes this formula.
    chance = float(ks_2samp(before, now, method="asymp").pvalue)
    return Change(expected=0.5, now=share, chance=chance)


def fewest_rows(before: int) -> int | None:
    """How many new rows `change_of_scores` needs to find that a fifth is of another kind; None if
    the rows `before` are too few for that. By the limit distribution of the test."""
    inverse = 2 * 0.2**2 / -np.log(ALARM / 4) - 1 / before
    return int(np.ceil(1 / inverse)) if inverse > 0 else None

"""Units change places with one another where that costs less by a whole block of the Fisher matrix.

One number for each unit cannot say that two units do the same work, so that either may go but not
both. The block of a layer can: closing a set of its units raises the loss by about c'F c / 2, c
being 1 where a unit is closed (Kwon et al. 2022, section 4.2). How many units a layer keeps stays
as it is, and so does the cost.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rearranged(kept: Tensor, fisher: Tensor) -> Tensor:
    """Swap kept and closed units of a layer, one pair at a time, while that lowers c'F c.

    `kept` (units,) bool; `fisher` (units, units). Each closed unit in turn changes places with the
    kept one that gains most, if any gains; the turns go round until none does. Ends, because every
    swap lowers c'F c and there are finitely many sets.
    """
    kept, fisher = kept.clone(), fisher.double()
    diagonal = fisher.diagonal()
    pull = fisher @ (~kept).double()  # F c, kept up to date
    least = -1e-12 * float(diagonal.sum())
    swapped = True
    while swapped:
        swapped = False
        for opening in (~kept).nonzero().flatten().tolist():
            change = (diagonal + diagonal[opening]) + 2 * (pull - pull[opening] - fisher[opening])
            change = change.masked_fill(~kept, torch.inf)
            closing = int(change.argmin())
            if change[closing] < least:
                kept[opening], kept[closing] = True, False
                pull += fisher[closing] - fisher[opening]
                swapped = True
    return kept

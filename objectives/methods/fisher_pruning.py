"""Fisher pruning, a fast post-training pruning framework after Kwon et al. 2022."""

# Three steps on the alpha split, none of which trains a weight: the units of highest Fisher
# information per FLOP inside the budget; then, layer by layer, units change places where the block
# of the Fisher matrix says that this costs less (`rearranged`); then factors of the kept units
# bring each block back to what it gave (`reconstruction.py`). With `stages=()` that is the whole
# method of the paper; with stages it is the baseline that a search has to beat at equal steps.

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from objectives.problem import Problem
from objectives.pruning.importance import fisher_blocks_of_student, scores_per_cost
from objectives.pruning.one_shot import OneShot
from objectives.pruning.reconstruction import reconstructed
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier


@dataclass(frozen=True, kw_only=True)
class FisherPruning(OneShot):
    """Masks by Fisher information, rearranged, their blocks reconstructed."""

    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    rearrange: bool = True
    """Let units change places within a layer, by a block of the Fisher matrix."""
    reconstruct: bool = True
    """Scale the kept units by least squares before anything is trained."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        return scores_per_cost(problem, self.spaces, "loss")

    def choose(self, problem: Problem, seed: int) -> BertArchitecture:
        """The units of highest score inside the budget, rearranged layer by layer."""
        chosen = super().choose(problem, seed)
        if not self.rearrange:
            return chosen
        shape, blocks = problem.shape, fisher_blocks_of_student(problem, self.spaces)
        masks = {}
        for space, rows in chosen.masks(shape, self.spaces).items():
            pairs = zip(map(torch.tensor, rows), blocks[space], strict=True)
            masks[space] = [rearranged(remaining, block).tolist() for remaining, block in pairs]
        return BertArchitecture.from_masks(shape, masks)

    def student(self, problem: Problem, architecture: BertArchitecture, seed: int) -> Classifier:
        if not self.reconstruct:
            return super().student(problem, architecture, seed)
        return reconstructed(problem, architecture)


def rearranged(remaining: Tensor, fisher: Tensor) -> Tensor:
    """Swap kept and closed units of a layer, one pair at a time, while that lowers c'F c."""
    # One number for each unit cannot say that two units do the same work, so that either may go but
    # not both. The block of a layer can: closing a set of its units raises the loss by about c'F c
    # / 2, c being 1 where a unit is closed (Kwon et al. 2022, section 4.2).
    #
    # `kept` (units,) bool; `fisher` (units, units). Each closed unit in turn changes places with
    # the kept one that gains most, if any gains; the turns go round until none does. Ends, because
    # every swap lowers c'F c and there are finitely many sets.
    remaining, fisher = remaining.clone(), fisher.double()
    diagonal = fisher.diagonal()
    pull = fisher @ (~remaining).double()  # F c, kept up to date
    least = -1e-12 * float(diagonal.sum())
    swapped = True
    while swapped:
        swapped = False
        for opening in (~remaining).nonzero().flatten().tolist():
            change = (diagonal + diagonal[opening]) + 2 * (pull - pull[opening] - fisher[opening])
            change = change.masked_fill(~remaining, torch.inf)
            closing = int(change.argmin())
            if change[closing] < least:
                remaining[opening], remaining[closing] = True, False
                pull += fisher[closing] - fisher[opening]
                swapped = True
    return remaining

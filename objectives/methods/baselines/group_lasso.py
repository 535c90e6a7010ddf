"""Group lasso: a penalty shrinks the weights of whole units while the student is trained, then the
units of the smallest weights go (Wen et al. 2016)."""

# After each step of a stage that searches, the penalty takes a proximal step of its own. With eta
# the peak of the rate at which the student learns (at R = 1 it is 0, so that nothing
# moves) and w_i the n_i weights of a unit, the rows that make it and the columns that read it,
#
#     w_i <- max(1 - eta lambda sqrt(n_i) / |w_i|, 0) w_i
#
# or, where single weights are penalised (L1), the same of each of them.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from objectives.device import on_device
from objectives.errors import NonNegativeFloat, UserError, check_ranges
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.reconstruction import shrinkage
from objectives.pruning.staged_method import StagedMethod
from objectives.pruning.staged_search import staged_search
from objectives.search_method import Outcome
from objectives.students.bert.architecture import BertArchitecture, units_of
from objectives.students.bert.linears import AXES
from objectives.training.computed_weights import unit_parts
from objectives.training.stage_training import Masks, StageTraining
from objectives.training.stages import RECOVER, Stage

Of = Literal["units", "weights"]


@dataclass(frozen=True, kw_only=True)
class GroupLasso(StagedMethod):
    """Remove the units whose weights a penalty shrank most."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"penalty"}
    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    penalty: NonNegativeFloat = 0.2
    """lambda: shrinkage of a weight in a step, as a share of the student's learning rate. >= 0."""
    of: Of = "units"
    """Object of the norm: "units" is group lasso, "weights" is L1."""
    stages: tuple[Stage, ...] = (
        replace(RECOVER, name="shrink", searches=True, keep="last"),
        RECOVER,
    )
    """Stages of the weights: first those with the penalty, which search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_binary_weights:
            raise UserError(
                "GroupLasso.weight_bits is 1, but binary weights have no 0, and units that it has "
                "shrunk to 0 may stay; set 2 or more"
            )
        searches = any(stage.searches for stage in self.stages)
        check_ranges(self, stages=(searches, "stages, the first of which search"))

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        alpha = Shrinking(members, problem)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)


class Shrinking:
    """The penalty of K students as an `Alpha`: it masks nothing and shrinks the weights."""

    from_train = False

    def __init__(self, members: Sequence[GroupLasso], problem: Problem):
        self.members, self.problem = members, problem
        self.means: dict[str, Tensor] = {}
        """Root mean square of the weights of each unit, (K, layers, units)."""

    def masks(self, progress: float) -> Masks:
        return {}

    @torch.no_grad()
    def learn(self, training: StageTraining, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        steps = [m.penalty * rate for m, rate in zip(self.members, training.rates, strict=True)]
        threshold, shape = on_device(torch.tensor(steps), self.problem.device), self.problem.shape
        for space in self.members[0].spaces:
            (units,), weights = units_of(shape, space), training.population.weights
            layers = (unit_parts(weights, n, AXES[space], units) for n in range(shape.layers))
            means = [shrunk(parts, threshold, self.members[0].of) for parts in layers]
            self.means[space] = torch.stack(means, dim=1)
        closed = [(means == 0).flatten(1) for means in self.means.values()]
        return {"closed": torch.cat(closed, dim=1).float().mean(-1)}

    def architecture(self, index: int) -> BertArchitecture:
        """The units that are not 0, if these meet the budget; else those of the largest weights."""
        scores = {space: means[index].cpu() for space, means in self.means.items()}
        if not all(value.isfinite().all() for value in scores.values()):
            raise FloatingPointError("weights are nan or infinite after the search")
        return self.members[index].within_budget(scores, self.problem, threshold=0.0)


def shrunk(parts: Sequence[Tensor], threshold: Tensor, of: Of) -> Tensor:
    """Make a proximal step on a layer's units, in place; returns their root mean squares."""
    number, by_K111 = sum(part[0, 0].numel() for part in parts), threshold.view(-1, 1, 1, 1)
    if of == "units":
        norms = torch.stack([part.square().sum((2, 3), keepdim=True) for part in parts]).sum(0)
        share = shrinkage(norms.sqrt(), by_K111 * number**0.5)
    for part in parts:
        part.mul_(share if of == "units" else shrinkage(part.abs(), by_K111))
    return (torch.stack([part.square().sum((2, 3)) for part in parts]).sum(0) / number).sqrt()

"""Width search: each layer chooses among candidate widths, two sampled at a time.

After transformable architecture search (TAS, Dong & Yang 2019), which shrinks convolutions. Here a
layer's widths are its number of heads and of FFN neurons; width 0 leaves the part out, so that
depth is searched too. alpha says how likely each candidate is. Every step draws two of them by
Gumbel-softmax for each layer, mixes them, and trains the weights by distillation; then alpha
learns, on other data and with draws of its own, from the task loss plus lambda times the FLOPs
hinge. The temperature falls all along. At the end the likeliest widths are cut, and distilled.

What differs from the paper: it trains its network from scratch, so that a layer's first channels
are as good as any; here the units of a pretrained layer are ordered by Fisher information first.
Its two widths end in different channels, which interpolation must align; in BERT the output
projection maps every width to the hidden size, and zeros will do (`align`). There is no batch
norm, so none for each candidate. It searches by cross-entropy and distils at temperature 4 when it
trains the result anew; here the weights learn from the teacher at temperature 1 all along. And its
alpha takes steps of 0.001 with momentum 0.5 and weight decay, over hundreds of epochs; here, over
two, of 0.1, with Adam's own momentum and no decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Self

from objectives.architecture import BertShape, units_of
from objectives.errors import UserError, check_ranges
from objectives.problem import Problem
from objectives.search_method import Outcome, Progress
from objectives.staged_method import StagedMethod
from objectives.staged_search import staged_search
from objectives.stages import Stage
from objectives.width_alpha import WidthAlpha


@dataclass(frozen=True, kw_only=True)
class WidthSearch(StagedMethod):
    """Search for the widths of the layers. The knobs of the outer study are `per_slot`."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}
    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    flops_weight: float = 2.0
    """lambda: weight of the FLOPs loss beside the task loss of alpha. >= 0."""
    grad_rescale: float = 0.1
    """kappa: step size of alpha's Adam. > 0."""

    spaces: tuple[str, ...] = ("heads", "ffn")
    """heads, ffn, or both."""
    shares: tuple[float, ...] = (0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1)
    """The candidates, shares of a layer's units: rising from >= 0 to 1, two at least."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=2, searches=True),
        Stage(name="recover", epochs=1),
    )
    temperature: tuple[float, float] = (10.0, 0.1)
    """Of the Gumbel-softmax at the start and at the end of the search, linear between. > 0."""
    align: Literal["zeros", "interpolate"] = "zeros"
    """How two widths become one: the units that the narrower lacks are 0; or its units are
    interpolated to the wider, channel by channel, as in TAS, at the price of matrices of units x
    units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = len(self.shares) > 1 and all(low < high for low, high in pairwise(self.shares))
        check_ranges(
            self,
            {
                "flops_weight": (self.flops_weight >= 0, ">= 0"),
                "grad_rescale": (self.grad_rescale > 0, "> 0"),
                "temperature": (
                    len(self.temperature) == 2 and min(self.temperature) > 0,
                    "two numbers > 0",
                ),
                "shares": (
                    rising and self.shares[0] >= 0 and self.shares[-1] == 1,
                    "two or more, rising from >= 0 to 1",
                ),
            },
        )
        if not any(stage.searches for stage in self.stages):
            raise UserError("WidthSearch.stages: none of them searches; alpha would learn nothing")

    def widths(self, units: int) -> list[int]:
        """The candidates of a layer of so many units, rising; of equal ones one stays."""
        return sorted({round(share * units) for share in self.shares})

    def check_shapes(self, student: BertShape, teacher: BertShape) -> None:
        """Each space has two candidates at least."""
        super().check_shapes(student, teacher)
        for space in self.spaces:
            (units,) = units_of(student, space)
            if len(self.widths(units)) < 2:
                raise UserError(
                    f"WidthSearch.shares is {self.shares}: of the {units} {space} of a layer all "
                    "of them are as many units, and nothing is left to search"
                )

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Search with all members as one program, then cut and distil."""
        alpha = WidthAlpha(members, problem, seed)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)

"""Stages of a training: loss, weights to begin with, length, rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from objectives.errors import Checked, NonNegativeFloat, PositiveFloat, UserError
from objectives.training.optimisation import Schedule

Loss = Literal["prediction", "prediction+hidden", "intermediate", "prediction+intermediate", "hint"]
WITH_SCORES: tuple[Loss, ...] = ("intermediate", "prediction+intermediate")
"""Losses that compare attention scores."""


@dataclass(frozen=True, kw_only=True)
class Stage(Checked):
    """A stretch of training with one loss, one optimiser and one schedule."""

    name: str
    """Name in learning curves; each stage of a method has its own."""
    epochs: PositiveFloat
    """Passes over the train split. > 0."""
    learning_rate: PositiveFloat = 1e-4
    """Peak of AdamW's rate, > 0, after 10% of warm-up. The rate that is used is this times the
    method's `lr_scale`, by default the share of the FLOPs that is cut away, whatever the study
    counts (while the search goes on, that is to be: 1 - R if it counts FLOPs): Adam's steps do not
    shrink with the gradient. A student of another checkpoint uses it in full, and so does a stage
    that is quantised."""
    schedule: Schedule = "linear"
    """After the warm-up the rate falls linearly to 0, or stays."""
    searches: bool = False
    """Alpha is trained too. The student is cut after the last stage that searches."""
    loss: Loss = "prediction"
    """Target of the weights: the teacher's logits; these and its hidden states, layer by layer
    (after CoFi, Xia et al. 2022, which learns the match of the layers: here it is fixed); its
    attention scores and hidden states, as TinyBERT does first; logits, scores and hidden states at
    once, as TernaryBERT does; or a "hint", its middle layer alone, from the student's (FitNets)."""
    hidden_weight: NonNegativeFloat = 10.0
    """Weight of the losses inside the model beside the logits. >= 0."""
    temperature: PositiveFloat = 1.0
    """T, by which the logits of student and teacher are divided; their loss is multiplied by T^2. A
    single output does not heed it. > 0."""
    start: Literal["previous", "student"] = "previous"
    """Weights at the start: those of the previous stage, or again the student's own, cut if the
    search is over."""
    quantised: bool = False
    """The weights learn with the bits that the method gives them (straight through: gradients pass
    the rounding as if there were none), and what enters them is rounded. After the search."""
    keep: Literal["best", "last"] = "last"
    """Kept weights after the search: those of the best epoch on the selection split, or the
    last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.searches and self.quantised:
            raise UserError(
                f"stage '{self.name}': quantised=True is only for stages after the search, which "
                "cuts full-precision weights"
            )
        if self.searches and self.keep == "best":
            raise UserError(
                f"stage '{self.name}': keep='best' is only for stages after the search; during "
                "the search a better score only means that less is cut so far"
            )


RECOVER = Stage(name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden", keep="best")
"""Default stage of a cut student."""
FOUR_STEPS = (
    Stage(
        name="search, intermediate",
        epochs=10,
        learning_rate=5e-5,
        schedule="constant",
        searches=True,
        loss="intermediate",
    ),
    Stage(name="search, prediction", epochs=10, learning_rate=5e-5, searches=True),
    Stage(
        name="intermediate",
        epochs=10,
        learning_rate=5e-5,
        schedule="constant",
        loss="intermediate",
        start="student",
    ),
    Stage(name="prediction", epochs=10, learning_rate=5e-5, keep="best"),
)
"""The mask search on TinyBERT: two stages that search, then the general student is cut to what they
found and distilled again, as TinyBERT distils: inside first, then what it says.

The source keeps the best checkpoint of the second stage too: an early one, at which little is cut
yet. Here it is the last."""


def check_order(stages: Sequence[Stage]) -> None:
    """Raise UserError unless each has a name of its own, and those that search come first."""
    names = [stage.name for stage in stages]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"stages: two are called '{twice[0]}'; give each stage a name of its own")
    for before, after in pairwise(stages):
        if after.searches and not before.searches:
            raise UserError(
                f"stages: '{after.name}' searches after a stage that does not; put all searching "
                "stages first, as the student is cut after the last of them"
            )

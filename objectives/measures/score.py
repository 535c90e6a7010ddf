"""Scores of a classifier: metrics and costs, measured on the model itself. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from objectives.errors import Finite, NonNegativeInt
from objectives.measures.bootstrap import Worth


@dataclass(frozen=True)
class Score(Worth):
    """Metrics and costs of a classifier."""

    divergence: float
    """`evaluate.divergence` from the teacher on the selection split."""
    heldout_divergence: float
    cost: Finite
    """Cost that the study minimises; an int where it is counted."""
    flops: int
    params: int
    bytes: int
    """Bytes of the file of its weights."""
    widths: Mapping[str, tuple[NonNegativeInt, ...]]
    """Sizes of each layer: `Architecture.sizes`; for the unpruned model those at ratio 1. BERT's
    kinds of units are named as in `objectives.students.bert.architecture.Widths`."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Threshold of each label by name, as a probability; empty unless labels have their own."""
    train_divergence: float | None = None
    """Divergence on 256 training rows; None if the model was not trained."""

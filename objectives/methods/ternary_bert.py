"""TernaryBERT (Zhang et al. 2020): weights of -1, 0 and 1 times a scale, learnt from the teacher.

The student is the teacher itself. It computes with ternary weights (2 bits) and inputs of 8 bits
from the first step on; the float32 weights behind these learn, straight through the rounding."""

# The paper adds up three losses, of attention scores, of hidden states and of logits, each with the
# weight 1, and rounds Q, K, V and the attention to 8 bits too. By default only the last two losses
# are added up here, and what attends is not rounded. `attention_bits=8` with a stage of
# `loss="prediction+intermediate"` and `hidden_weight=1` has both as in the paper.

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from objectives.errors import PositiveShare
from objectives.pruning.one_shot import OneShot
from objectives.pruning.staged_method import Bits
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture
from objectives.training.stages import RECOVER, Stage


@dataclass(frozen=True, kw_only=True)
class TernaryBert(OneShot):
    """The whole student in ternary weights. With less than all of R the units stay that move the
    answer most for their cost; with `weight_bits=1` it is binary from the start."""

    target_ratio: PositiveShare = 1.0
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    weight_bits: Bits = 2
    """Bits of each weight, in all layers, or an entry a layer: 32, 8, 4, 2 (ternary) or 1."""
    input_bits: Bits = 8
    """To which what enters a weight of few bits is rounded: 32 (not at all), 8 or 4."""
    attention_bits: Literal[32, 8, 4] = 32
    """To which Q, K, V and the attention are rounded in layers of few bits: 32 (not), 8 or 4."""
    embedding_bits: int = 2
    """Bits of the embeddings of words and positions, which do not learn: 32, 8, 4, 2 or 1."""
    stages: tuple[Stage, ...] = (replace(RECOVER, name="ternary", quantised=True),)
    """Stages of the weights: 3 epochs at 3e-4, logits and hidden states, the best kept."""

    def inactive(self) -> Mapping[str, str]:
        inactive = dict(super().inactive())
        if "input_bits" in inactive:
            inactive["attention_bits"] = inactive["input_bits"]
        return inactive

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        rounded = super().in_bits(architecture)
        few = None if self.attention_bits == FULL_BITS else self.attention_bits
        layers = (
            replace(layer, attention_bits=layer.weight_bits and few) for layer in rounded.layers
        )
        return replace(rounded, layers=tuple(layers))

"""The one way to count: FLOPs of a BERT classifier in closed form, exact or expected.

FLOPs = 2 x multiply-accumulates of every matmul that the cut model executes: the linear layers of
the encoder, Q K^T, attention times V, pooler and classifier. Embedding look-ups, softmax, layer
norm, activations and bias adds are no matmuls and do not count. Tests hold that this equals
`torch.utils.flop_counter.FlopCounterMode` to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from objectives.architecture import Architecture, BertShape

Count = TypeVar("Count", int, Tensor)
"""A number of units: an int where it is exact, a tensor where it is expected."""


def encoder_layer_macs(
    *, seq_len: int, hidden: int, query_key: Count, value: Count, ffn: Count
) -> Count:
    """Multiply-accumulates of one encoder layer for one sequence.

    `query_key` and `value` are the dimensions of Q (and of K) and of V, summed over the heads;
    `ffn` is the number of neurons. Ints give an int, tensors a tensor of their shape.
    """
    projections = seq_len * hidden * (2 * query_key + value)
    attention = seq_len * seq_len * (query_key + value)
    output = seq_len * hidden * value
    feed_forward = 2 * seq_len * hidden * ffn
    return projections + attention + output + feed_forward


@dataclass(frozen=True)
class Flops:
    """FLOPs of a classifier of `shape`, cut or masked, for one sequence of `seq_len` tokens."""

    shape: BertShape
    seq_len: int

    @property
    def unit(self) -> str:
        """The unit every number of this cost carries. Two units are never compared."""
        return f"flops@{self.seq_len}"

    @property
    def full(self) -> int:
        """FLOPs of the unpruned model."""
        return self.exact(Architecture.full(self.shape))

    def exact(self, architecture: Architecture) -> int:
        """FLOPs of the model that is cut to `architecture`."""
        layers = sum(self._layer(len(layer.heads), len(layer.ffn)) for layer in architecture.layers)
        return layers + self._classifier

    def expected(self, masks: Mapping[str, Tensor]) -> Tensor:
        """FLOPs at the sums of soft masks; equal to `exact` where every mask is 0 or 1.

        `masks` maps "heads" to (K, layers, heads) and "ffn" to (K, layers, ffn), values in [0, 1];
        a space that is missing is fully open. Returns (K,) float64, differentiable.
        """
        heads, ffn = (
            masks[space].double().sum(-1) if space in masks else None for space in ("heads", "ffn")
        )
        some = heads if heads is not None else ffn
        assert some is not None, "expected() needs the masks of at least one space"
        heads = some.new_full(some.shape, self.shape.heads) if heads is None else heads
        ffn = some.new_full(some.shape, self.shape.ffn) if ffn is None else ffn
        return self._layer(heads, ffn).sum(-1) + self._classifier

    def of_one_unit(self) -> dict[str, int]:
        """FLOPs that one unit of each space adds."""
        nothing = self._layer(0, 0)
        return {"heads": self._layer(1, 0) - nothing, "ffn": self._layer(0, 1) - nothing}

    def _layer(self, heads: Count, ffn: Count) -> Count:
        width = self.shape.head_dim * heads
        return 2 * encoder_layer_macs(
            seq_len=self.seq_len,
            hidden=self.shape.hidden,
            query_key=width,
            value=width,
            ffn=ffn,
        )

    @property
    def _classifier(self) -> int:
        return 2 * self.shape.hidden * (self.shape.hidden + self.shape.labels)

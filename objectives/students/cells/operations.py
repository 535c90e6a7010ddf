"""What a block of a cell may do with a sequence: the table of operations.

An operation takes the hidden states, (B, S, D), 0 at padding, and the mask, (B, S, 1) of 1 and 0;
it gives (B, S, D), anything at padding. This file imports torch alone: an exported model carries a
copy of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

HEAD_DIM = 16
"""Of an attention. Widths are multiples of it."""
FAR = -1e4
"""Below all hidden states, for padding that must not be a maximum."""


class GatedConvolution(nn.Module):
    """A gated linear unit, a convolution of each channel, a linear layer (after Wu et al. 2019)."""

    def __init__(self, width: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.gated = nn.Linear(width, 2 * width)
        padding = dilation * (kernel // 2)
        self.along = nn.Conv1d(width, width, kernel, 1, padding, dilation, groups=width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Padding gives its neighbours nothing."""
        units = nn.functional.glu(self.gated(hidden_BSD), dim=-1) * mask_BS1
        mixed = self.along(units.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.out(nn.functional.gelu(mixed))
        return out


class GatedUnit(nn.Module):
    """A gated linear unit and a linear layer: each position for itself."""

    def __init__(self, width: int):
        super().__init__()
        self.gated, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        out: Tensor = self.out(nn.functional.glu(self.gated(hidden_BSD), dim=-1))
        return out


class Attention(nn.Module):
    """Self-attention with heads of `HEAD_DIM` dimensions."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = width // HEAD_DIM
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, HEAD_DIM)).transpose(1, 2)
            for part in self.query_key_value(hidden_BSD).chunk(3, dim=-1)
        )
        seen_B11S = mask_BS1.bool().transpose(1, 2)[:, None]
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen_B11S)
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out


class Pooling(nn.Module):
    """The maximum or the mean of three neighbours; it has no weights and no matmuls."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        if self.kind == "mean":
            sums = _of_three(hidden_BSD * mask_BS1, 0.0).sum(-1)
            return sums / _of_three(mask_BS1, 0.0).sum(-1).clamp_min(1)
        highest: Tensor = _of_three(hidden_BSD.masked_fill(mask_BS1 == 0, FAR), FAR).amax(-1)
        return highest


def _of_three(hidden_BSD: Tensor, beyond: float) -> Tensor:
    """Each position beside its two neighbours, (B, S, D, 3)."""
    padded = nn.functional.pad(hidden_BSD, (0, 0, 1, 1), value=beyond)
    return torch.stack([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], dim=-1)


NONE = "none"
"""In place of an operation: the block is left out."""
OPERATIONS: dict[str, Callable[[int], nn.Module]] = {
    "conv3": lambda width: GatedConvolution(width, 3),
    "conv5": lambda width: GatedConvolution(width, 5),
    "conv7": lambda width: GatedConvolution(width, 7),
    "dilated5": lambda width: GatedConvolution(width, 5, dilation=2),
    "dilated7": lambda width: GatedConvolution(width, 7, dilation=3),
    "attention": Attention,
    "gated": GatedUnit,
    "max3": lambda width: Pooling("max"),
    "mean3": lambda width: Pooling("mean"),
}
"""What makes each operation of a width, by the name that a genotype has for it."""

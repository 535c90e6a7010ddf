"""Relative positions of MPNet: each head adds to an attention score a number that depends on the
distance from query to key. Exports carry a copy: this file imports torch alone."""

import torch
from torch import Tensor, nn


def buckets_of(length: int, device: torch.device) -> Tensor:
    """Bucket of each pair of positions, (length queries, length keys) int64 below 32."""
    # Each distance below 8 has a bucket, and bucket 8 + k begins where its square reaches 64 * 2^k:
    # logarithms, as MPNet has them, would be rounded otherwise by each runtime.
    positions = torch.arange(length, device=device)
    starts = 64 * 2 ** torch.arange(1, 8, device=device)
    buckets = positions.clamp_max(8) + (positions[:, None] ** 2 >= starts).sum(-1)
    distances = positions - positions[:, None]
    return buckets[distances.abs()] + 16 * (distances > 0)


class PositionBias(nn.Module):
    """Bias for each head and bucket, (heads, buckets)."""

    def __init__(self, heads: int, buckets: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, buckets))

    def forward(self, mask: Tensor | None, buckets_SS: Tensor) -> Tensor:
        """Bias to add, (B, H, S, S), with a mask (B, 1, 1 or S, S) of bools or to be added."""
        bias_HSS = self.weight[:, buckets_SS]
        if mask is None:
            return bias_HSS[None]
        if mask.dtype != torch.bool:
            return bias_HSS + mask
        return torch.where(mask, bias_HSS, torch.finfo(bias_HSS.dtype).min)

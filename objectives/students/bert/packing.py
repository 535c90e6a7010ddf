"""Weights of few bits as a model keeps them: weight[row, column] = scale[row] * code[row, column].
Codes of 8 and 4 bits are whole numbers without the lowest, of 2 bits -1, 0, 1, of one -1, 1. Files
are so much smaller, torch no faster. This file imports torch alone: exports carry a copy."""

from typing import Any

import torch
from torch import Tensor, nn

WEIGHT_BITS = (8, 4, 2, 1)
"""Possible bits of a code."""
INPUT_BITS = (8, 4)
"""Possible bits of the inputs of a weight."""
LARGEST = {8: 127, 4: 7, 2: 1, 1: 1}
"""Largest code by bits; the smallest is its negative."""


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes (rows, columns) into bytes (rows, columns x bits / 8, rounded up), uint8."""
    digits = (codes + LARGEST[bits]) // (2 if bits == 1 else 1)  # from 0 on
    each = 8 // bits
    padded = nn.functional.pad(digits.to(torch.uint8), (0, -codes.shape[1] % each))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    grouped: Tensor = padded.unflatten(1, (-1, each))
    return (grouped << shifts).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Unpack codes (rows, columns) of `pack` to float32."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    digits = ((packed[..., None] >> shifts) & (2**bits - 1)).flatten(-2)[..., :columns]
    codes: Tensor = digits.float() * (2 if bits == 1 else 1) - LARGEST[bits]
    return codes


def rounded_inputs(inputs: Tensor, bits: int) -> Tensor:
    """Round each vector (the last axis) to 2^bits equal steps over its range and 0; float32."""
    inputs = inputs.float()
    low, high = inputs.amin(-1, keepdim=True).clamp_max(0), inputs.amax(-1, keepdim=True)
    step = ((high.clamp_min(0) - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float32).tiny)
    zero = (-low / step).round()
    rounded: Tensor = ((inputs / step + zero).round().clamp(0, 2**bits - 1) - zero) * step
    return rounded


class PackedLinear(nn.Module):
    """Quantised linear layer, (width, inputs), of all dimensions or those of a buffer `inputs`."""

    # A weight of several `halves` is their sum: the rows of one, then those of the next.

    codes: Tensor
    scale: Tensor
    inputs: Tensor | None

    def __init__(
        self,
        inputs: int,
        width: int,
        bits: int,
        input_bits: int | None = None,
        halves: int | None = None,
        selects: bool = False,
    ):
        super().__init__()
        self.in_features, self.out_features, self.size = inputs, width, inputs * width
        self.bits, self.input_bits, self.halves = bits, input_bits, halves or 1
        rows = self.halves * width
        self.register_buffer("codes", torch.zeros(rows, -(-inputs * bits // 8), dtype=torch.uint8))
        self.register_buffer("scale", torch.zeros(rows, 1))
        self.register_buffer("inputs", torch.zeros(inputs, dtype=torch.long) if selects else None)
        self.bias = nn.Parameter(torch.zeros(width))
        self._made: tuple[Tensor, Tensor, tuple[int, int] | None, Tensor] | None = None
        """Codes, scale, the versions of both, and the weight unpacked from them."""

    @property
    def weight(self) -> Tensor:
        """Weight (width, inputs), float32, cached until its codes or scale change."""
        # A tensor's version counts its edits in place; one from torch's inference mode has none, so
        # its weight is made each time. torch.compile reads no version: a compiled model learns of a
        # loaded state alone.
        codes, scale, made = self._buffers["codes"], self._buffers["scale"], self._made
        tracing = torch.compiler.is_compiling()
        if (
            made is not None
            and (made[0] is codes and made[1] is scale)
            and (tracing or (made[2] and made[2] == (codes._version, scale._version)))
        ):
            return made[3]
        rows = unpack(self.codes, self.bits, self.in_features) * self.scale
        weight: Tensor = rows.unflatten(0, (self.halves, -1)).sum(0)
        versions = None
        if not (tracing or self.codes.is_inference() or self.scale.is_inference()):
            versions = self.codes._version, self.scale._version
        self._made = self.codes, self.scale, versions, weight
        return weight

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        self._made = None
        super()._load_from_state_dict(*arguments, **named)

    def forward(self, units: Tensor) -> Tensor:
        if self.inputs is not None:
            units = units[..., self.inputs]
        if self.input_bits is not None:
            units = rounded_inputs(units, self.input_bits)
        return nn.functional.linear(units, self.weight, self.bias)


class PackedEmbedding(nn.Module):
    """Quantised embeddings (tokens, size); rows are unpacked as they are looked up."""

    codes: Tensor
    scale: Tensor

    def __init__(self, tokens: int, size: int, bits: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.size = tokens, size, tokens * size
        self.bits = bits
        self.register_buffer("codes", torch.zeros(tokens, -(-size * bits // 8), dtype=torch.uint8))
        self.register_buffer("scale", torch.zeros(tokens, 1))

    @property
    def weight(self) -> Tensor:
        """(tokens, size) float32."""
        return unpack(self.codes, self.bits, self.embedding_dim) * self.scale

    def forward(self, tokens: Tensor) -> Tensor:
        return unpack(self.codes[tokens], self.bits, self.embedding_dim) * self.scale[tokens]

"""Costs that depend on bits: bytes of the file, and bit operations.

A search chooses units as if nothing were quantised; what the cut model costs counts its bits.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from objectives.measures.cost import Cost, Count, Flops
from objectives.students.bert.architecture import BertArchitecture, LayerUnits, Widths
from objectives.students.bert.linears import (
    INPUTS,
    LINEARS,
    POSITION_BIAS,
    Linear,
    matmuls,
    params_of_layer,
)
from objectives.students.bert.quantising import ROUNDED_EMBEDDINGS, WORDS

_TYPES = {8: "I64", 4: "F32", 1: "U8"}
"""Types by their bytes; safetensors lays out the widest first."""


def bytes_of(state: Mapping[str, Tensor]) -> int:
    """Bytes of the safetensors file of a model: a length, a padded header in JSON, and tensors."""
    laid = sorted(state.items(), key=lambda item: (-item[1].element_size(), item[0]))
    ends = list(accumulate((tensor.nbytes for _, tensor in laid), initial=0))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for (name, tensor), start, end in zip(laid, ends, ends[1:], strict=False):
        kind = _TYPES[tensor.element_size()]
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [start, end]}
    text = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-text // 8) * 8 + ends[-1]


@dataclass(frozen=True)
class Bytes(Cost):
    """Bytes of the file of a classifier's weights, model.safetensors."""

    counts_bits: ClassVar[bool] = True

    embeddings: Mapping[str, tuple[int, ...]]
    """Names and shapes of the embeddings' tensors, which do not follow from the model's shape."""

    @property
    def unit(self) -> str:
        return "bytes"

    @cached_property
    def fixed(self) -> int:
        full = BertArchitecture.full(self.shape)
        layers = sum(self.layer(widths) for widths in full.widths(self.shape))
        return int(self.exact(full) - layers)

    def layer(self, widths: Widths[Count]) -> Count:
        return 4 * params_of_layer(widths, self.shape)

    def exact(self, architecture: BertArchitecture) -> int:
        return bytes_of(dict(self._tensors(architecture)))

    def _tensors(self, architecture: BertArchitecture) -> Iterator[tuple[str, Tensor]]:
        hidden, labels = self.shape.hidden, self.shape.labels
        for name, shape in self.embeddings.items():
            if name in ROUNDED_EMBEDDINGS:
                stem, (rows, columns) = name.removesuffix(".weight"), shape
                if name == WORDS and architecture.vocabulary is not None:
                    rows = architecture.vocabulary
                yield from _weight(stem, rows, columns, architecture.embedding_bits)
            else:
                yield name, _empty(*shape)
        for number, units in enumerate(architecture.layers):
            if units.dropped:
                continue
            layer = f"bert.encoder.layer.{number}."
            sizes = units.widths(self.shape)._asdict() | {"hidden": hidden}
            for index, linear in enumerate(LINEARS):
                yield from _linear(layer, linear, sizes, units, units.rank(index))
                inputs = getattr(units, linear.inputs, None) if linear.inputs in INPUTS else None
                if inputs is not None:
                    yield f"{layer}{linear.name}.inputs", _empty(len(inputs), dtype=torch.int64)
            if self.shape.buckets is not None:
                bias = f"{layer}{POSITION_BIAS.name}.weight"
                yield bias, _empty(len(units.heads), self.shape.buckets)
            for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
                yield f"{layer}{norm}.weight", _empty(hidden)
                yield f"{layer}{norm}.bias", _empty(hidden)
        rows = hidden * (architecture.pooler_halves or 1)
        yield from _weight("bert.pooler.dense", rows, hidden, architecture.pooler_bits)
        yield "bert.pooler.dense.bias", _empty(hidden)
        yield "classifier.weight", _empty(labels, hidden)
        yield "classifier.bias", _empty(labels)


def _linear(
    layer: str, linear: Linear, sizes: Mapping[str, int], units: LayerUnits, rank: int
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a linear layer; one without inputs or outputs is not packed."""
    name, rows, columns = layer + linear.name, sizes[linear.outputs], sizes[linear.inputs]
    if linear.inputs in INPUTS and not columns:  # of a layer without heads, which reads all
        columns = sizes["hidden"]
    if rank:
        yield f"{name}.reduce.weight", _empty(rank, columns)
        name += ".expand"
        yield f"{name}.weight", _empty(rows, rank)
    elif rows and columns:
        yield from _weight(name, rows * (units.halves or 1), columns, units.weight_bits)
    else:
        yield f"{name}.weight", _empty(rows, columns)
    yield f"{name}.bias", _empty(rows)


def _weight(name: str, rows: int, columns: int, bits: int | None) -> Iterator[tuple[str, Tensor]]:
    if bits is None:
        yield f"{name}.weight", _empty(rows, columns)
    else:
        yield f"{name}.codes", _empty(rows, -(-columns * bits // 8), dtype=torch.uint8)
        yield f"{name}.scale", _empty(rows, 1)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@dataclass(frozen=True)
class BitOps(Flops):
    """FLOPs, where a product of quantised numbers counts bits x bits / 64, as in BinaryBERT's
    tables (Bai et al. 2021): one of 8 bits with 8 counts as one of float32."""

    # A weight of few bits counts as float32 where what enters it is not rounded: the two meet in
    # float32. Q K^T and attention times V have no weights; both factors have the `attention_bits`
    # of the layer, or without these the bits of what enters its weights.

    counts_bits: ClassVar[bool] = True

    @property
    def unit(self) -> str:
        return f"bitops@{self.seq_len}"

    def exact(self, architecture: BertArchitecture) -> float:
        total = 0.0
        for matmul in matmuls(architecture, self.shape, self.seq_len):
            into = matmul.input_bits
            of_weight = matmul.weight_bits if matmul.weight else into
            total += matmul.flops * (of_weight * into / 64 if of_weight and into else 1)
        return total

"""Architecture: the discrete answer of a search, as sorted lists of the units that survive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from objectives.errors import UserError

_FORMAT = "maskfront-architecture-1"


@dataclass(frozen=True)
class BertShape:
    """The sizes of an unpruned BERT classifier that decide what can be cut and what it costs."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    labels: int


@dataclass(frozen=True)
class LayerUnits:
    """Units of one layer that survive: indices into the unpruned layer, ascending."""

    heads: tuple[int, ...]
    ffn: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, kept in (("heads", self.heads), ("ffn", self.ffn)):
            if any(a >= b for a, b in pairwise(kept)) or min(kept, default=0) < 0:
                raise UserError(
                    f"architecture: '{name}' must be ascending indices from 0, got {list(kept)}"
                )


@dataclass(frozen=True)
class Architecture:
    """Which units survive in each layer. A layer may keep no head, no FFN neuron, or neither."""

    layers: tuple[LayerUnits, ...]

    @classmethod
    def full(cls, shape: BertShape) -> Architecture:
        """The architecture that keeps every unit of `shape`."""
        layer = LayerUnits(tuple(range(shape.heads)), tuple(range(shape.ffn)))
        return cls((layer,) * shape.layers)

    @classmethod
    def from_masks(
        cls, heads: Sequence[Sequence[bool]], ffn: Sequence[Sequence[bool]]
    ) -> Architecture:
        """From one row of booleans per layer and space: True keeps the unit."""
        return cls(
            tuple(
                LayerUnits(_indices(layer_heads), _indices(layer_ffn))
                for layer_heads, layer_ffn in zip(heads, ffn, strict=True)
            )
        )

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Number of attention heads kept in each layer."""
        return tuple(len(layer.heads) for layer in self.layers)

    @property
    def ffn_per_layer(self) -> tuple[int, ...]:
        """Number of FFN neurons kept in each layer."""
        return tuple(len(layer.ffn) for layer in self.layers)

    def check(self, shape: BertShape) -> None:
        """Raise UserError unless every kept unit exists in a model of `shape`."""
        if len(self.layers) != shape.layers:
            raise UserError(
                f"architecture: it has {len(self.layers)} layers, the model {shape.layers}"
            )
        for number, layer in enumerate(self.layers):
            for name, kept, size in (
                ("heads", layer.heads, shape.heads),
                ("ffn", layer.ffn, shape.ffn),
            ):
                if kept and kept[-1] >= size:
                    raise UserError(
                        f"architecture: layer {number} keeps '{name}' unit {kept[-1]}, "
                        f"the model has {size}"
                    )

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back to an equal Architecture."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Architecture:
        """Read what `to_json` wrote. Raises UserError for anything else."""
        try:
            document: dict[str, Any] = json.loads(text)
            if document["format"] != _FORMAT:
                raise UserError(
                    f"architecture: format {document['format']!r}, expected {_FORMAT!r}"
                )
            return cls(
                tuple(
                    LayerUnits(tuple(map(int, layer["heads"])), tuple(map(int, layer["ffn"])))
                    for layer in document["layers"]
                )
            )
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"architecture: not a {_FORMAT} document ({error!r})") from error


def _indices(kept: Sequence[bool]) -> tuple[int, ...]:
    return tuple(index for index, keep in enumerate(kept) if keep)

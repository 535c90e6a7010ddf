"""Architecture of a cut BERT: sorted lists of the units that survive."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from objectives.errors import UserError

_FORMAT = "maskfront-architecture-1"
_OF_MODEL = ("embedding_bits", "vocabulary")
"""Entries of an architecture that belong to no layer."""

SPACES_OF_LAYERS = ("heads", "ffn", "qk", "v", "input", "input_qkv")
"""Kinds of units within a layer."""

SPACES = (*SPACES_OF_LAYERS, "layers")
"""The kinds of units that can be searched.

heads       attention heads
ffn         FFN neurons
qk          dimensions that query and key of a head share
v           dimensions of the value of a head
input       dimensions of the hidden state that enter Q, K and V: one set for all three
input_qkv   the same with a set for each of Q, K and V; a search has one of the two at most
layers      whole layers, with their biases and norms: each layer is one unit"""

FULL_BITS = 32
"""Bits of a number that is not quantised."""

SizeOf = TypeVar("SizeOf", covariant=True)


def _wrong(problem: str) -> UserError:
    return UserError(f"architecture: {problem}")


@dataclass(frozen=True)
class BertShape:
    """Sizes of an unpruned BERT classifier that decide what can be cut and its cost."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    labels: int
    embedding: int | None = None
    """Size of the embeddings if they are projected to the hidden size."""
    buckets: int | None = None
    """Buckets of relative positions of a head, if it has any."""


def units_of(shape: BertShape, space: str) -> tuple[int, ...]:
    """Shape of a space's units in one layer, the last dimensions of alpha, masks and scores."""
    return {
        "heads": (shape.heads,),
        "ffn": (shape.ffn,),
        "qk": (shape.heads, shape.head_dim),
        "v": (shape.heads, shape.head_dim),
        "input": (1, shape.hidden),
        "input_qkv": (3, shape.hidden),
        "layers": (1,),
    }[space]


class Widths(NamedTuple, Generic[SizeOf]):
    """Remaining widths of one layer, which decide its cost: ints if exact, tensors if expected."""

    heads: SizeOf
    query_key: SizeOf
    """Dimensions of Q, and of K, summed over the heads."""
    value: SizeOf
    """Dimensions of V, summed over the heads."""
    query_inputs: SizeOf
    """Dimensions of the hidden state that enter Q; 0 in a layer without heads."""
    key_inputs: SizeOf
    value_inputs: SizeOf
    ffn: SizeOf
    layers: SizeOf
    """1, or 0 for a layer that is dropped with its biases and norms: then nothing else counts."""


@dataclass(frozen=True)
class LayerUnits:
    """Surviving units of one layer: ascending indices into the unpruned layer; None means all."""

    # None is the only way to say all; a layer without heads also has it for what belongs to heads.

    heads: tuple[int, ...]
    ffn: tuple[int, ...]
    query_key: tuple[tuple[int, ...], ...] | None = None
    """Kept dimensions of Q and K of each kept head: equally many, at least one."""
    value: tuple[tuple[int, ...], ...] | None = None
    """Kept dimensions of V of each kept head: equally many, at least one."""
    query_inputs: tuple[int, ...] | None = None
    """Dimensions of the hidden state that Q reads: at least one."""
    key_inputs: tuple[int, ...] | None = None
    value_inputs: tuple[int, ...] | None = None
    weight_bits: int | None = None
    """Bits of each weight of the layer; None: not quantised."""
    input_bits: int | None = None
    """Bits of each number that enters a weight of the layer."""
    attention_bits: int | None = None
    """Bits of each number of Q, K, V and of the attention."""
    halves: int | None = None
    """Number of matrices of `weight_bits` that add up to each weight of the layer; None: one."""
    dropped: bool | None = None
    """True: the layer is dropped with its biases and norms, and passes its input on."""
    ranks: tuple[int, ...] | None = None
    """Ranks of weights as two factors, in the order of `linears.LINEARS`; 0 or None: one matrix."""

    def __post_init__(self) -> None:
        if self.dropped not in (None, True):
            raise _wrong(f"'dropped' of a layer is {self.dropped!r}; it must be true, or left out")
        if self.dropped and (self.heads or self.ffn):
            raise _wrong(
                f"a layer is dropped, but keeps {len(self.heads)} heads and "
                f"{len(self.ffn)} FFN neurons; leave these out"
            )
        _check_ascending("heads", self.heads)
        _check_ascending("ffn", self.ffn)
        for name, rows in (("query_key", self.query_key), ("value", self.value)):
            if rows is None:
                continue
            sizes = {len(row) for row in rows}
            if len(rows) != len(self.heads) or len(sizes) != 1 or 0 in sizes:
                raise _wrong(
                    f"'{name}' must have one row for each of the {len(self.heads)} "
                    f"heads, equally long and not empty, got rows of {[len(row) for row in rows]}"
                )
            for row in rows:
                _check_ascending(name, row)
        for name in ("query_inputs", "key_inputs", "value_inputs"):
            inputs = getattr(self, name)
            if inputs is None:
                continue
            if not inputs or not self.heads:
                raise _wrong(
                    f"'{name}' is {list(inputs)} in a layer of {len(self.heads)} "
                    "heads; with heads it has at least one index, without heads it is left out"
                )
            _check_ascending(name, inputs)

    @property
    def bits_of_a_weight(self) -> int | None:
        """Bits of a weight, all its halves together; None: not quantised."""
        return self.weight_bits and self.weight_bits * (self.halves or 1)

    def rank(self, index: int) -> int:
        """Rank of the weight at this index of `linears.LINEARS`; 0 for one matrix, and beyond."""
        return self.ranks[index] if self.ranks and index < len(self.ranks) else 0

    def widths(self, shape: BertShape) -> Widths[int]:
        """Remaining widths of a layer of `shape`."""
        heads = len(self.heads)

        def over_heads(rows: tuple[tuple[int, ...], ...] | None) -> int:
            return heads * (shape.head_dim if rows is None else len(rows[0]))

        def inputs(units: tuple[int, ...] | None) -> int:
            return (shape.hidden if units is None else len(units)) if heads else 0

        return Widths(
            heads=heads,
            query_key=over_heads(self.query_key),
            value=over_heads(self.value),
            query_inputs=inputs(self.query_inputs),
            key_inputs=inputs(self.key_inputs),
            value_inputs=inputs(self.value_inputs),
            ffn=len(self.ffn),
            layers=0 if self.dropped else 1,
        )


@dataclass(frozen=True)
class BertArchitecture:
    """Architecture of a cut BERT: the units of each layer, which may have none, or be dropped."""

    layers: tuple[LayerUnits, ...]
    embedding_bits: int | None = None
    """Bits of each number of the embeddings of words and positions; None: not quantised."""
    vocabulary: int | None = None
    """Number of kept word pieces, those that the task uses most; None: all."""
    order: str | None = None
    """Order of the sublayers: "s" is the next layer's attention, "f" the next layer's FFN, each
    once for every layer. None is "sf" repeated, which has no other spelling."""
    shape: BertShape | None = field(default=None, compare=False, repr=False)
    """Shape of the unpruned model, if known; not in its JSON."""

    @classmethod
    def full(cls, shape: BertShape) -> "BertArchitecture":
        """Architecture that keeps every unit of `shape`."""
        return cls.from_masks(shape, {})

    @classmethod
    def from_masks(cls, shape: BertShape, masks: Mapping[str, Sequence[Any]]) -> "BertArchitecture":
        """Build from booleans by space, (layers, *units_of), True keeps; a missing one is whole."""
        # Units of a closed head or layer go with it. LayerUnits refuses heads of unequal sizes.
        layers = tuple(_from_masks(shape, masks, i) for i in range(shape.layers))
        return cls(layers, shape=shape)

    def masks(self, shape: BertShape, spaces: Sequence[str]) -> dict[str, list[Any]]:
        """Booleans by space, (layers, *units_of), as for `from_masks`; closed with their head."""
        return {s: [_layer_mask(shape, layer, s) for layer in self.layers] for s in spaces}

    def widths(self, shape: BertShape) -> tuple[Widths[int], ...]:
        """Remaining widths of each layer of a model of `shape`."""
        return tuple(layer.widths(shape) for layer in self.layers)

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Remaining units of each layer by names of `Widths`; layers, bits and ranks if cut."""
        sizes = {"heads": self.heads_per_layer, "ffn": self.ffn_per_layer}
        if self.shape is not None:
            of_layers = zip(*self.widths(self.shape), strict=True)
            sizes = dict(zip(Widths._fields, of_layers, strict=True))
            del sizes["layers"]
        if any(layer.dropped for layer in self.layers):
            sizes["layers"] = tuple(0 if layer.dropped else 1 for layer in self.layers)
        for name, bits in (
            ("weight_bits", [layer.bits_of_a_weight for layer in self.layers]),
            ("input_bits", [layer.input_bits for layer in self.layers]),
            ("attention_bits", [layer.attention_bits for layer in self.layers]),
        ):
            if any(bits):
                sizes[name] = tuple(number or FULL_BITS for number in bits)
        if self.low_rank:
            sizes["ranks"] = tuple(sum(layer.ranks or ()) for layer in self.layers)
        return sizes

    @property
    def low_rank(self) -> bool:
        """Whether some weights are products of two factors."""
        return any(layer.ranks for layer in self.layers)

    @property
    def has_bits(self) -> bool:
        """Whether some weights are quantised."""
        return self.embedding_bits is not None or any(layer.weight_bits for layer in self.layers)

    @property
    def pooler_bits(self) -> int | None:
        """Bits of the pooler's weight: the most of any layer."""
        return self._of_pooler().weight_bits

    @property
    def pooler_halves(self) -> int | None:
        """Halves of the pooler's weight: those of the layer with most bits."""
        return self._of_pooler().halves

    def _of_pooler(self) -> LayerUnits:
        layers = (layer for layer in self.layers if not layer.dropped)
        most = max(layers, key=lambda units: units.bits_of_a_weight or FULL_BITS, default=None)
        return most or LayerUnits((), ())

    def with_bits(
        self, weights: Sequence[int], inputs: Sequence[int], embeddings: int
    ) -> "BertArchitecture":
        """Copy with bits of weights, inputs and embeddings; `FULL_BITS` means not quantised."""
        # A layer whose weights are not quantised rounds no inputs, and none is split.
        if self.low_rank and min(weights) < FULL_BITS:
            raise _wrong(
                "weights of low rank have no bits; leave weight_bits out, or train another model"
            )

        def few(bits: int) -> int | None:
            return None if bits == FULL_BITS else bits

        layers = []
        for layer, of_weights, into in zip(self.layers, weights, inputs, strict=True):
            if not layer.dropped:
                bits, of_inputs = few(of_weights), few(of_weights) and few(into)
                layer = replace(layer, weight_bits=bits, input_bits=of_inputs)
                layer = replace(layer, attention_bits=None, halves=None)
            layers.append(layer)
        return replace(self, layers=tuple(layers), embedding_bits=few(embeddings))

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Number of attention heads kept in each layer."""
        return tuple(len(layer.heads) for layer in self.layers)

    @property
    def ffn_per_layer(self) -> tuple[int, ...]:
        """Number of FFN neurons kept in each layer."""
        return tuple(len(layer.ffn) for layer in self.layers)

    def check(self, shape: BertShape) -> None:
        """Raise UserError unless this fits `shape`, in the only spelling that its units have."""
        if len(self.layers) != shape.layers:
            raise _wrong(f"it has {len(self.layers)} layers, the model {shape.layers}")
        if self.order is not None and sorted(self.order) != sorted("sf" * shape.layers):
            raise _wrong(
                f"the order is '{self.order}'; it must have {shape.layers} times "
                "'s' and as often 'f', once for each layer"
            )
        if self.order == "sf" * shape.layers:
            raise _wrong("the order is that of a plain BERT; leave it out")
        for number, layer in enumerate(self.layers):
            bits = layer.weight_bits, layer.input_bits, layer.attention_bits, layer.halves
            if (*bits, layer.ranks) != (None,) * 5:
                raise _wrong(
                    f"layer {number} has bits or ranks of its own; cutting keeps "
                    "weights as they are, so leave these out"
                )
            per_head = dict.fromkeys(("query_key", "value"), shape.head_dim)
            inputs = dict.fromkeys(("query_inputs", "key_inputs", "value_inputs"), shape.hidden)
            sizes = {"heads": shape.heads, "ffn": shape.ffn, **per_head, **inputs}
            for name, size in sizes.items():
                units = getattr(layer, name) or ()
                rows = units if name in per_head else (units,)
                for row in rows:
                    if row and row[-1] >= size:
                        raise _wrong(
                            f"layer {number} keeps '{name}' unit {row[-1]}, the model has {size}"
                        )
                if name not in ("heads", "ffn") and rows and len(rows[0]) == size:
                    raise _wrong(
                        f"layer {number} lists all {size} units of '{name}'; leave them out"
                    )

    def to_json(self) -> str:
        """Write one line of JSON; `from_json` reads it back to an equal BertArchitecture."""

        def said(owner: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in owner.items() if value is not None}

        layers = [said(asdict(layer)) for layer in self.layers]
        of_model = said({name: getattr(self, name) for name in (*_OF_MODEL, "order")})
        return json.dumps({"format": _FORMAT, "layers": layers, **of_model})

    @classmethod
    def from_json(cls, text: str) -> "BertArchitecture":
        """Read what `to_json` wrote. Raises UserError for anything else."""
        try:
            document: dict[str, Any] = json.loads(text)
            if (version := document["format"]) != _FORMAT:
                raise _wrong(f"format {version!r}, expected {_FORMAT!r}")
            layers = []
            for layer in document["layers"]:
                units = {n: _to_tuples(value) for n, value in layer.items() if n != "dropped"}
                layers.append(LayerUnits(**units, dropped=layer.get("dropped")))
            of_model = {name: _to_tuples(document.get(name)) for name in _OF_MODEL}
            if not isinstance(order := document.get("order"), str | None):
                raise TypeError(f"order is {order!r}")
            return cls(tuple(layers), **of_model, order=order)
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _wrong(f"not a {_FORMAT} document ({error!r})") from error


def sandwich(layers: int, k: int) -> str:
    """Order of a sandwich transformer, s^k (sf)^(layers - k) f^k (Press et al. 2020)."""
    return "s" * k + "sf" * (layers - k) + "f" * k


def _check_ascending(name: str, indices: tuple[int, ...]) -> None:
    if any(a >= b for a, b in pairwise(indices)) or min(indices, default=0) < 0:
        raise _wrong(f"'{name}' must be ascending indices from 0, got {list(indices)}")


def _from_masks(shape: BertShape, masks: Mapping[str, Sequence[Any]], number: int) -> LayerUnits:
    if "layers" in masks and not masks["layers"][number][0]:
        return LayerUnits((), (), dropped=True)
    heads, ffn = (
        _indices(masks[space][number]) if space in masks else tuple(range(size))
        for space, size in (("heads", shape.heads), ("ffn", shape.ffn))
    )
    if not heads:
        return LayerUnits(heads, ffn)

    def over_heads(space: str) -> tuple[tuple[int, ...], ...] | None:
        if space not in masks:
            return None
        rows = tuple(_indices(masks[space][number][head]) for head in heads)
        return None if all(len(row) == shape.head_dim for row in rows) else rows

    inputs = masks.get("input_qkv", masks.get("input"))
    input_sets = [_indices(row) for row in inputs[number]] if inputs is not None else []
    if len(input_sets) != 3:  # of one set for all three, or none: all inputs
        input_sets = (input_sets or [tuple(range(shape.hidden))]) * 3
    query, key, value = (None if len(row) == shape.hidden else row for row in input_sets)
    return LayerUnits(heads, ffn, over_heads("qk"), over_heads("v"), query, key, value)


def _layer_mask(shape: BertShape, layer: LayerUnits, space: str) -> list[Any]:
    def row(indices: Sequence[int] | None, size: int) -> list[bool]:
        units = set(range(size) if indices is None else indices)
        return [unit in units for unit in range(size)]

    if space == "layers":
        return [not layer.dropped]
    if space in ("heads", "ffn"):
        return row(getattr(layer, space), *units_of(shape, space))
    if space in ("qk", "v"):
        rows = layer.query_key if space == "qk" else layer.value
        of_head = dict(zip(layer.heads, rows or [None] * len(layer.heads), strict=True))
        return [row(of_head.get(head, ()), shape.head_dim) for head in range(shape.heads)]
    sets = (layer.query_inputs, layer.key_inputs, layer.value_inputs)
    masks = [row(units if layer.heads else (), shape.hidden) for units in sets]
    return masks[:1] if space == "input" else masks


def _indices(mask: Sequence[bool]) -> tuple[int, ...]:
    return tuple(index for index, keep in enumerate(mask) if keep)


def _to_tuples(units: Any) -> Any:
    """Convert lists of a JSON document to tuples of ints; null stays None."""
    if isinstance(units, list):
        return tuple(_to_tuples(member) for member in units)
    return None if units is None else int(units)

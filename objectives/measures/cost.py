"""Cost of a BERT classifier in closed form, exact or expected: a sum over layers, in a unit."""

# FLOPs = 2 x multiply-accumulates of every matmul that the cut model executes: the linear layers of
# the encoder, Q K^T, attention times V, pooler, classifier, and the projection of embeddings that
# are narrower than hidden states. Embedding look-ups, softmax, layer norm, activations and bias
# adds are no matmuls and do not count. Tests hold that this equals
# `torch.utils.flop_counter.FlopCounterMode` to the last digit.

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from objectives.errors import UserError
from objectives.students.bert.architecture import (
    SPACES,
    BertArchitecture,
    BertShape,
    Widths,
    units_of,
)
from objectives.students.bert.linears import (
    LINEARS,
    PRODUCTS,
    areas,
    matmuls,
    numbers_saved,
    params_of_layer,
)

CostName = Literal["flops", "params", "units", "latency", "bytes", "bitops"]
"""Costs that a study may count; "latency" is `objectives.measures.latency.Latency`, the last two
are in `objectives.measures.bits`."""

Count = TypeVar("Count", float, Tensor)
"""A number if exact, a tensor if expected; ints stay ints."""


@dataclass(frozen=True)
class Cost(abc.ABC):
    """Cost of a classifier of `shape`, cut or masked: a sum over its layers. A subclass gives the
    unit, the fixed part, and the cost of a layer: an int if it is counted."""

    priced: ClassVar[tuple[str, ...]] = SPACES
    """Spaces with a cost."""
    counts_bits: ClassVar[bool] = False
    """Whether it depends on bits, which a budget of units ignores."""

    shape: BertShape

    @property
    @abc.abstractmethod
    def unit(self) -> str:
        """Unit of this cost. Numbers of different units are never compared."""

    @property
    @abc.abstractmethod
    def fixed(self) -> float:
        """Cost outside the layers."""

    @abc.abstractmethod
    def layer(self, widths: Widths[Count]) -> Count:
        """Cost of a kept layer, monotone in each width: ints give an int, tensors a tensor."""

    @cached_property
    def full(self) -> float:
        """Cost of the unpruned model."""
        return self.exact(BertArchitecture.full(self.shape))

    def exact(self, architecture: BertArchitecture) -> float:
        """Cost of the model that is cut to `architecture`."""
        layers = architecture.widths(self.shape)
        return sum(self.layer(widths) for widths in layers if widths.layers) + self.fixed

    def expected(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Expected cost (K,) in float64, differentiable, from soft masks, space to (K, layers,
        *units_of); equals `exact` at masks of 0 and 1. A missing space is open."""
        assert masks, "expected() needs the masks of at least one space"
        check_priced(self.unit, self.priced, tuple(masks))
        students_and_layers = next(iter(masks.values())).shape[:2]
        layers = self.layer(_expected_widths(masks, self.shape))
        if "layers" in masks:
            layers = layers * masks["layers"].double().squeeze(-1)
        return layers.expand(students_and_layers).sum(-1) + self.fixed

    def of_one_unit(self) -> dict[str, float]:
        """Cost of one unit of each space in an otherwise unpruned model, averaged over layers."""
        costs = {}
        for space in self.priced:
            closed = torch.zeros(1, self.shape.layers, *units_of(self.shape, space))
            lost = self.full - self.expected({space: closed}).item()
            costs[space] = lost / closed.numel()
        return costs


def check_priced(what: str, priced: tuple[str, ...], spaces: tuple[str, ...]) -> None:
    """Raise UserError if `what` has no cost for one of the `spaces`."""
    unknown = [space for space in spaces if space not in priced]
    if unknown:
        raise UserError(
            f"{what} has no cost for units of {', '.join(unknown)}, only for units of "
            f"{', '.join(priced)}; search these, or count flops or params"
        )


@dataclass(frozen=True)
class Flops(Cost):
    """FLOPs of a classifier for one sequence of `seq_len` tokens."""

    seq_len: int

    @property
    def unit(self) -> str:
        return f"flops@{self.seq_len}"

    @cached_property
    def fixed(self) -> int:
        return sum(m.flops for m in matmuls(BertArchitecture(()), self.shape, self.seq_len))

    def layer(self, widths: Widths[Count]) -> Count:
        sizes = {"hidden": self.shape.hidden, "tokens": self.seq_len}
        return 2 * self.seq_len * areas(LINEARS + PRODUCTS, widths, **sizes)

    def exact(self, architecture: BertArchitecture) -> float:
        saved = numbers_saved(architecture, self.shape)
        return super().exact(architecture) - 2 * self.seq_len * saved


@dataclass(frozen=True)
class Params(Cost):
    """Parameters of a classifier, as `evaluate.count_parameters` counts them."""

    embeddings: int
    """Parameters of the embeddings: their number does not follow from the shape."""
    vocabulary: int
    """Word pieces, each with an embedding."""

    @property
    def unit(self) -> str:
        return "params"

    @cached_property
    def fixed(self) -> int:
        alone = replace(self.shape, embedding=None)  # its projection is one of the embeddings'
        return self.embeddings + sum(m.params for m in matmuls(BertArchitecture(()), alone, 1))

    def layer(self, widths: Widths[Count]) -> Count:
        return params_of_layer(widths, self.shape)

    def exact(self, architecture: BertArchitecture) -> float:
        gone = 0 if architecture.vocabulary is None else self.vocabulary - architecture.vocabulary
        gone *= self.shape.embedding or self.shape.hidden
        return super().exact(architecture) - gone - numbers_saved(architecture, self.shape)


@dataclass(frozen=True)
class Units(Cost):
    """Number of kept units of the searched spaces, the size that the source report's runs set."""

    spaces: tuple[str, ...]

    @property
    def unit(self) -> str:
        return "units@" + "+".join(space for space in SPACES if space in self.spaces)

    @property
    def fixed(self) -> int:
        return 0

    def layer(self, widths: Widths[Count]) -> Count:
        heads = widths.heads
        attends = heads.clamp(max=1) if isinstance(heads, Tensor) else min(heads, 1)
        counts = {
            "heads": heads,
            "ffn": widths.ffn,
            "qk": widths.query_key,
            "v": widths.value,
            # A layer without heads reads nothing, whatever its masks of inputs say.
            "input": attends * widths.query_inputs,
            "input_qkv": attends * (widths.query_inputs + widths.key_inputs + widths.value_inputs),
            "layers": widths.layers,
        }
        return sum((counts[space] for space in self.spaces), 0 * heads)


def _expected_widths(masks: Mapping[str, Tensor], shape: BertShape) -> Widths[Tensor]:
    """Sums of masks, (K, layers) or () float64; a head's dimension counts as much as the head."""

    def total(space: str) -> Tensor:
        """Over the last axis of units; a number on the CPU goes with tensors of any device."""
        if space in masks:
            return masks[space].double().sum(-1)
        return torch.tensor(units_of(shape, space)[-1], dtype=torch.float64)

    def over_heads(space: str) -> Tensor:
        if "heads" in masks:
            return (masks["heads"].double() * total(space)).sum(-1)
        return total(space).sum(-1) if space in masks else shape.heads * total(space)

    space = "input_qkv" if "input_qkv" in masks else "input"
    inputs = total(space).expand(*masks[space].shape[:2], 3) if space in masks else None
    query, key, value = [total(space)] * 3 if inputs is None else inputs.unbind(-1)
    return Widths(
        heads=total("heads"),
        query_key=over_heads("qk"),
        value=over_heads("v"),
        query_inputs=query,
        key_inputs=key,
        value_inputs=value,
        ffn=total("ffn"),
        layers=torch.ones((), dtype=torch.float64),
    )

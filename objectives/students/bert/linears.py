"""Table of a layer's weights: which units lie along which axis of which weight.

Whatever cuts, pads, masks, ranks or counts units reads it here. With the sizes of an architecture
it is the list of all matmuls of a model, from which costs are summed."""

from functools import cache, reduce
from operator import add
from typing import Any, NamedTuple, TypeVar, cast

from objectives.students.bert.architecture import BertArchitecture, BertShape, Widths

_Count = TypeVar("_Count", bound=Any)


class Linear(NamedTuple):
    """Weight of a layer, (outputs, inputs), with its bias; axes as in `Widths`, or "hidden"."""

    # Cutting a unit removes the rows that make it, with their biases, and the columns that read it.

    name: str
    outputs: str
    inputs: str


LINEARS = (
    Linear("attention.self.query", "query_key", "query_inputs"),
    Linear("attention.self.key", "query_key", "key_inputs"),
    Linear("attention.self.value", "value", "value_inputs"),
    Linear("attention.output.dense", "hidden", "value"),
    Linear("intermediate.dense", "ffn", "hidden"),
    Linear("output.dense", "hidden", "ffn"),
)
POSITION_BIAS = Linear("attention.self.position_bias", "heads", "buckets")
"""Weight without a bias that multiplies nothing; only MPNet has it."""
PRODUCTS = (
    Linear("attention.scores", "tokens", "query_key"),
    Linear("attention.context", "value", "tokens"),
)
"""Q K^T and attention times V, of all heads: one factor is an activation instead of a weight."""

AXES = {
    "heads": ("query_key", "value"),
    "ffn": ("ffn",),
    "qk": ("query_key",),
    "v": ("value",),
    "input": ("query_inputs", "key_inputs", "value_inputs"),
    "input_qkv": ("query_inputs", "key_inputs", "value_inputs"),
}
"""Axes along which the units of each space lie."""
_ALWAYS = 6
"""Parameters of every layer for each hidden dimension: two output biases, and two norms."""
PER_HEAD, INPUTS = AXES["heads"], AXES["input"]
"""Axes that run over the dimensions of one head after another, and axes of the hidden state."""


class Matmul(NamedTuple):
    """Product of the vectors of one sequence with a matrix (outputs, inputs)."""

    name: str
    """Name of the module with the weight, or of an activation."""
    vectors: int
    outputs: int
    inputs: int
    weight: bool
    """Whether the matrix is a weight with a bias instead of an activation."""
    weight_bits: int | None = None
    """Bits of each number of the matrix, all its halves together; None: not quantised."""
    input_bits: int | None = None
    """Bits of each number of the vectors."""
    rank: int = 0
    """Rank of the two factors of the matrix; 0: one matrix."""

    @property
    def numbers(self) -> int:
        """Number of entries of the matrix, or of its factors."""
        if self.rank:
            return self.rank * (self.outputs + self.inputs)
        return self.outputs * self.inputs

    @property
    def flops(self) -> int:
        """FLOPs: twice the multiply-accumulates."""
        return 2 * self.vectors * self.numbers

    @property
    def params(self) -> int:
        """Number of parameters of the weight and its bias."""
        return self.numbers + self.outputs if self.weight else 0


def matmuls(architecture: BertArchitecture, shape: BertShape, seq_len: int) -> list[Matmul]:
    """List the matmuls of a classifier of `shape` cut to `architecture`, for one sequence."""
    hidden, embedding = shape.hidden, shape.embedding
    products = []
    if embedding is not None:
        products.append(Matmul("bert.embeddings.project", seq_len, hidden, embedding, True))
    for number, units in enumerate(architecture.layers):
        sizes = {**units.widths(shape)._asdict(), "hidden": hidden, "tokens": seq_len}
        products += [
            Matmul(
                f"bert.encoder.layer.{number}.{linear.name}",
                seq_len,
                sizes[linear.outputs],
                sizes[linear.inputs],
                linear in LINEARS,
                units.bits_of_a_weight,
                units.input_bits if linear in LINEARS else units.attention_bits or units.input_bits,
                units.rank(index),
            )
            for index, linear in enumerate(LINEARS + PRODUCTS)
        ]
    products.append(Matmul("bert.pooler.dense", 1, hidden, hidden, True))
    products.append(Matmul("classifier", 1, shape.labels, hidden, True))
    return products


def numbers_saved(architecture: BertArchitecture, shape: BertShape) -> int:
    """Number of parameters that low rank saves."""
    if not architecture.low_rank:
        return 0
    products = matmuls(architecture, shape, 1)
    return sum(matmul.outputs * matmul.inputs - matmul.numbers for matmul in products)


def params_of_layer(widths: Widths[_Count], shape: BertShape) -> _Count:
    """Count the parameters of a layer of these widths that is not dropped."""
    matrices = areas(LINEARS, widths, bias=1, hidden=shape.hidden)
    return cast("_Count", matrices + _ALWAYS * shape.hidden + (shape.buckets or 0) * widths.heads)


def areas(
    linears: tuple[Linear, ...], widths: Widths[_Count], *, bias: int = 0, **fixed: int
) -> _Count:
    """Sum outputs x (inputs + bias) over a layer's matrices; `fixed` sizes follow from no width."""
    # Each width that makes units stands once, times all that a unit meets: widths may be tensors,
    # for which few operations matter.
    terms = _terms(linears, bias, tuple(fixed.items()))
    products = (widths[w] * sum((widths[o] for o in others), n) for w, others, n in terms)
    return cast("_Count", reduce(add, products))


@cache
def _terms(
    linears: tuple[Linear, ...], bias: int, fixed: tuple[tuple[str, int], ...]
) -> tuple[tuple[int, list[int], int], ...]:
    """Indices in `Widths` of a width and of those that it is multiplied by, and a number."""
    sizes, terms = dict(fixed), dict[str, tuple[list[int], list[int]]]()
    for _, outputs, inputs in linears:
        makes, other = (inputs, outputs) if outputs in sizes else (outputs, inputs)
        others, numbers = terms.setdefault(makes, ([], []))
        if other in sizes:
            numbers.append(sizes[other])
        else:
            others.append(Widths._fields.index(other))
        if makes == outputs:
            numbers.append(bias)
    return tuple((Widths._fields.index(w), others, sum(n)) for w, (others, n) in terms.items())

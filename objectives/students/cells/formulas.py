"""Formulas of attention, graphs of functions of Q, K, V and P (AutoBERT-Zero, Gao et al. 2022).

This file imports torch and files beside it: an exported model carries copies."""

# A formula is written as nested calls: standard attention is
# matmul(softmax(scale(matmul(Q,transpose(K)))),V). What stands there twice is computed once. A
# value is a matrix of each head, whose sides are n tokens or d dimensions; an input is n x d, and
# so must the result be. What the paper leaves open is decided so: `scale` divides by the root of d
# whatever the sides, as the formulas that it found need; `cosine` and `euclidean` compare each row
# of one matrix with each row of the other.

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .operations import HEAD_DIM

INPUTS = ("Q", "K", "V", "P")
"""Linear maps of the hidden states."""
UNARY = ("neg", "transpose", "scale", "softmax", "logsigmoid", "softsign")
BINARY = ("add", "matmul", "cosine", "euclidean")
OPERANDS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2)}
"""Number of operands by function."""
LONGEST = 2_000
"""Largest number of characters of a formula."""
_SMOOTH = 1e-3
"""Added under the root of a Euclidean distance, whose gradient would be infinite at 0."""


def is_formula(operation: str) -> bool:
    """Whether the name of an operation is a formula."""
    return "(" in operation


def applied(function: str, *operands: str) -> str:
    """Apply a function in canonical form: `add` sorts, `neg` and `transpose` undo themselves."""
    if function in ("neg", "transpose") and operands[0].startswith(f"{function}("):
        return operands[0][len(function) + 1 : -1]
    return f"{function}({','.join(sorted(operands) if function == 'add' else operands)})"


def formula_shape(function: str, shapes: Sequence[str]) -> str | None:
    """Shape of a function of matrices, "nd" for n x d; None if it is not defined."""
    first, last = shapes[0], shapes[-1]
    if function == "add":
        return first if first == last else None
    if function == "matmul":
        return first[0] + last[1] if first[1] == last[0] else None
    if function in ("cosine", "euclidean"):
        return first[0] + last[0] if first[1] == last[1] else None
    return first[::-1] if function == "transpose" else first


class Part(NamedTuple):
    """A part of a formula."""

    function: str
    """Function, or an input, which has no operands."""
    operands: tuple[str, ...]
    shape: str


def parts_of(text: str) -> dict[str, Part]:
    """Parts of a canonical formula by their text, operands first; ValueError for anything else."""
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text):,} characters; at most {LONGEST:,} are read")
    parts: dict[str, Part] = {}

    def part(node: ast.AST) -> str:
        call = isinstance(node, ast.Call) and not node.keywords
        args, function = (node.args, node.func) if call else ([], node)  # type: ignore[attr-defined]
        name = function.id if isinstance(function, ast.Name) else ""
        if len(args) != OPERANDS.get(name, 0 if name in INPUTS else None):
            raise ValueError(
                f"'{ast.unparse(node)[:80]}' is neither an input ({', '.join(INPUTS)}) nor one of "
                f"{', '.join(UNARY)} of one operand or {', '.join(BINARY)} of two"
            )
        operands = tuple(map(part, args))
        shapes = [parts[operand].shape for operand in operands]
        shape = formula_shape(name, shapes) if operands else "nd"
        if shape is None:
            raise ValueError(f"there is no {name} of {' and '.join(shapes)}")
        text = applied(name, *operands) if operands else name
        parts.setdefault(text, Part(name, operands, shape))
        return text

    try:
        root = part(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it cannot be read") from error
    if parts[root].shape != "nd":
        raise ValueError(f"it gives {parts[root].shape}, and must give nd")
    if root != text:
        raise ValueError(f"write it as '{root}'")
    return parts


class Formula(nn.Module):
    """A formula of linear maps, one for each of its inputs, in heads; a linear layer follows."""

    def __init__(self, width: int, text: str):
        super().__init__()
        self.parts = parts_of(text)
        names = [name for name in INPUTS if name in self.parts]
        self.maps = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.out = nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        # Wherever tokens are added up or compared padding is left out; else each entry of a value
        # comes of its own row and column, and what those of padding are does not matter.
        beyond_B11S = mask_BS1.transpose(1, 2)[:, None] == 0
        values: dict[str, Tensor] = {}
        for name, (function, operands, _) in self.parts.items():
            if operands:
                given = [values[operand] for operand in operands]
                along_tokens = self.parts[operands[0]].shape[1] == "n"
                values[name] = _value(function, given, beyond_B11S if along_tokens else None)
            else:
                heads_BSHD = self.maps[name](hidden_BSD).unflatten(-1, (-1, HEAD_DIM))
                values[name] = heads_BSHD.transpose(1, 2)
        out: Tensor = self.out(values[name].transpose(1, 2).flatten(2))
        return out


def _value(function: str, given: Sequence[Tensor], beyond_B11S: Tensor | None) -> Tensor:
    """Function of matrices, (B, H, ., .), without what lies beyond the text along tokens."""
    x, y = given[0], given[-1]
    if function in _ENTRYWISE:
        return _ENTRYWISE[function](*given)
    if function == "softmax":
        shown = x if beyond_B11S is None else x.masked_fill(beyond_B11S, torch.finfo(x.dtype).min)
        return shown.softmax(-1)
    if beyond_B11S is not None:
        x = x.masked_fill(beyond_B11S, 0)
    if function == "matmul":
        return x @ y
    if beyond_B11S is not None:
        y = y.masked_fill(beyond_B11S, 0)
    if function == "cosine":
        return functional.normalize(x, dim=-1) @ functional.normalize(y, dim=-1).mT
    squares = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
    return ((squares - 2 * x @ y.mT).clamp_min(0) + _SMOOTH).sqrt()


_ENTRYWISE: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "transpose": lambda x: x.mT,
    "scale": lambda x: x / HEAD_DIM**0.5,
    "logsigmoid": functional.logsigmoid,
    "softsign": functional.softsign,
    "add": torch.add,
}

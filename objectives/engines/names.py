"""Names of the engines and their bits; imports no torch, for reports."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from objectives.errors import UserError

Engine = Literal[
    "eager", "bfloat16", "compile", "onnxruntime", "onnxruntime-int8", "onnxruntime-int4"
]
"""Engine that runs a model: torch as it is, torch cast to bfloat16, torch.compile; on the CPU
onnxruntime with float32, with dynamic int8, or with 4 bits in blocks, for the smallest file. torch
runs bfloat16 on a CPU without instructions for it too, slowly. A model of few bits stays packed in
the first alone; the others run what its codes stand for. In a written folder numpy runs the int8 of
a cell without operations, which onnxruntime makes slower."""
ENGINES: tuple[Engine, ...] = get_args(Engine)
FULL_BITS = 32
"""Bits of unquantised weights; defined again here, as `objectives.students.bert` imports torch."""
_FEWER = {"bfloat16": 16, "onnxruntime-int8": 8, "onnxruntime-int4": 4}
BITS: Mapping[str, int] = {engine: _FEWER.get(engine, FULL_BITS) for engine in ENGINES}
"""Bits of the weights by engine: an engine with fewer than `FULL_BITS` gives other answers."""


def check_engines(names: Sequence[str] | None) -> tuple[Engine, ...]:
    """Check names of engines; None means all. Raises UserError for an unknown one."""
    chosen = tuple(engine for engine in ENGINES if names is None or engine in names)
    unknown = set(names or ()) - set(chosen)
    if unknown:
        raise UserError(f"no engine '{min(unknown)}'; there are {', '.join(ENGINES)}")
    return chosen

"""What people serve a classifier with: torch or onnxruntime, in float32 or in less.

Each engine makes a model ready to run, and says how many bytes of weights it loads for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from objectives.bert.quantising import dense
from objectives.delivery.onnx_model import (
    open_session,
    run_session,
    write_int4,
    write_int8,
    write_onnx,
)
from objectives.device import to_device
from objectives.errors import UserError

Engine = Literal[
    "eager", "bfloat16", "compile", "onnxruntime", "onnxruntime-int8", "onnxruntime-int4"
]
"""What runs a model: torch as it is, torch cast to bfloat16, torch.compile; on the CPU onnxruntime
with float32, with dynamic int8, or with 4 bits in blocks, for the smallest file. torch runs
bfloat16 on a CPU without instructions for it too, slowly. A model of few bits stays packed in the
first alone; the others run what its codes stand for."""
ENGINES: tuple[Engine, ...] = get_args(Engine)
BITS: Mapping[Engine, int] = {
    "eager": 32,
    "bfloat16": 16,
    "compile": 32,
    "onnxruntime": 32,
    "onnxruntime-int8": 8,
    "onnxruntime-int4": 4,
}
"""Of the weights: whoever has fewer than 32 gives other answers."""

Feeds = Mapping[str, Tensor]
Run = Callable[[Feeds], Tensor]
"""A forward pass: from what a tokenizer makes of texts to logits (batch, C)."""
_WHOLE = "model.onnx"
_FEWER: Mapping[str, tuple[str, Callable[[Path, Path], None]]] = {
    "onnxruntime-int8": ("model_int8.onnx", write_int8),
    "onnxruntime-int4": ("model_int4.onnx", write_int4),
}
"""Of an engine with fewer bits its file, and what writes that from the whole one."""


@dataclass(frozen=True)
class Served:
    """A model ready to run in an engine."""

    run: Run
    bytes: int
    """Of the weights that torch holds, or of the file that another engine reads."""


def check_engines(names: Sequence[str] | None) -> tuple[Engine, ...]:
    """The engines of these names, all for None. Raises UserError for one that is not there."""
    chosen = tuple(engine for engine in ENGINES if names is None or engine in names)
    unknown = set(names or ()) - set(chosen)
    if unknown:
        raise UserError(f"no engine '{min(unknown)}'; there are {', '.join(ENGINES)}")
    return chosen


def serve(
    engine: Engine, models: Mapping[str, PreTrainedModel], scratch: Path, threads: int, device: str
) -> list[Served]:
    """Make models ready to run, in their order.

    Their names are those of folders, which may bring ONNX files; others are made in `scratch`, once
    for all engines. Raises UserError for an engine that does not run here.
    """
    if engine in ("eager", "bfloat16", "compile"):
        return [_in_torch(engine, model, device) for model in models.values()]
    if device != "cpu":
        raise UserError("it is timed on the CPU only")
    files = [
        _onnx_file(engine, model, (Path(name) / "onnx", scratch / str(number)))
        for number, (name, model) in enumerate(models.items())
    ]
    return [
        Served(partial(run_session, open_session(file, threads)), file.stat().st_size)
        for file in files
    ]


def _in_torch(engine: Engine, model: PreTrainedModel, device: str) -> Served:
    if engine != "eager":
        model = dense(model)
    if engine == "bfloat16":
        model = copy.deepcopy(model).bfloat16()  # the other engines run it as it is
    to_device(model, device)
    call = torch.compile(model, dynamic=False) if engine == "compile" else model

    def run(inputs: Feeds) -> Tensor:
        with torch.inference_mode():
            output = call(**{name: value.to(device) for name, value in inputs.items()})
        logits: Tensor = output.logits
        return logits

    return Served(run, sum(w.numel() * w.element_size() for w in model.state_dict().values()))


def _onnx_file(engine: Engine, model: PreTrainedModel, folders: tuple[Path, Path]) -> Path:
    """An engine's file in the model's own folder, or else in the one that is written to."""
    name, write = _FEWER.get(engine, (_WHOLE, None))
    own, scratch = (folder / name for folder in folders)
    if own.is_file() or scratch.is_file():
        return own if own.is_file() else scratch
    scratch.parent.mkdir(exist_ok=True)
    if write is not None:
        write(_onnx_file("onnxruntime", model, folders), scratch)
    else:
        write_onnx(to_device(model, "cpu"), scratch)
    return scratch

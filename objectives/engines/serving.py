"""What people serve a classifier with: torch or onnxruntime, in float32 or in less.

Each engine makes a model ready to run, and says how many bytes of weights it loads for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from objectives.device import to_device
from objectives.engines.names import Engine
from objectives.engines.onnx_model import (
    check_installed,
    open_session,
    run_session,
    write_int4,
    write_int8,
    write_onnx,
)
from objectives.errors import UserError
from objectives.students.bert.quantising import dense

Feeds = Mapping[str, Tensor]
Run = Callable[[Feeds], Tensor]
"""A forward pass: from what a tokenizer makes of texts to logits (batch, C)."""
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


def check_engine(engine: Engine, device: str) -> None:
    """Raise UserError unless the engine is there and runs on the device, which may be "auto"."""
    if not engine.startswith("onnxruntime"):
        return
    if device not in ("cpu", "auto"):
        raise UserError(
            f"engine '{engine}' runs on the CPU alone, not on '{device}'; take one of torch, or "
            "launch on the CPU",
            "device",
        )
    check_installed("onnx", "onnxscript", "onnxruntime")


def serve(
    engine: Engine, models: Mapping[str, PreTrainedModel], scratch: Path, threads: int, device: str
) -> list[Served]:
    """Make models ready to run, in their order. Names are folders, which may bring ONNX files;
    other files go to `scratch`, once for all engines. Raises UserError for an engine that does not
    run here."""
    if engine in ("eager", "bfloat16", "compile"):
        return [_in_torch(engine, model, device) for model in models.values()]
    check_engine(engine, device)
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

    @torch.inference_mode()
    def run(inputs: Feeds) -> Any:
        return call(**{name: value.to(device) for name, value in inputs.items()}).logits

    return Served(run, sum(w.numel() * w.element_size() for w in model.state_dict().values()))


def _onnx_file(engine: Engine, model: PreTrainedModel, folders: tuple[Path, Path]) -> Path:
    """An engine's file in the model's own folder, or else in the one that is written to."""
    name, write = _FEWER.get(engine, ("model.onnx", None))
    own, scratch = (folder / name for folder in folders)
    if own.is_file() or scratch.is_file():
        return own if own.is_file() else scratch
    scratch.parent.mkdir(exist_ok=True)
    if write is not None:
        write(_onnx_file("onnxruntime", model, folders), scratch)
    else:
        write_onnx(to_device(model, "cpu"), scratch)
    return scratch

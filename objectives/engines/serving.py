"""Serve a classifier in torch or onnxruntime, in float32 or fewer bits."""

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
ForwardPass = Callable[[Feeds], Tensor]
"""Forward pass, from a tokenizer's output to logits (batch, C)."""
_FEWER: Mapping[str, tuple[str, Callable[[Path, Path], None]]] = {
    "onnxruntime-int8": ("model_int8.onnx", write_int8),
    "onnxruntime-int4": ("model_int4.onnx", write_int4),
}
"""File of each engine with fewer bits, and the function that writes it from the float32 file."""


@dataclass(frozen=True)
class Served:
    """Model ready to run in an engine."""

    run: ForwardPass
    bytes: int
    """Bytes of the weights that torch holds, or of the file that another engine reads."""
    file: Path | None = None
    """The file that onnxruntime reads."""


def check_engine(engine: Engine, device: str) -> None:
    """Raise UserError unless the engine is there and runs on the device, which may be "auto"."""
    if not engine.startswith("onnxruntime"):
        return
    if device not in ("cpu", "auto"):
        raise UserError(
            f"engine '{engine}' only runs on the CPU, not on '{device}'; use a torch engine, or "
            "launch on the CPU",
            "device",
        )
    check_installed("onnx", "onnxscript", "onnxruntime")


def make_runnable(
    engine: Engine, models: Mapping[str, PreTrainedModel], scratch: Path, threads: int, device: str
) -> list[Served]:
    """Prepare models for an engine, in order. Names are folders, which may bring ONNX files; other
    files go to `scratch`, once for all engines. Raises UserError if the engine does not run."""
    if engine in ("eager", "bfloat16", "compile"):
        return [_in_torch(engine, model, device) for model in models.values()]
    check_engine(engine, device)
    files = [
        onnx_file(engine, model, scratch / str(number), own=Path(name) / "onnx")
        for number, (name, model) in enumerate(models.items())
    ]
    return [
        Served(partial(run_session, open_session(file, threads)), file.stat().st_size, file)
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

    return Served(run, sum(weight.nbytes for weight in model.state_dict().values()))


def onnx_file(
    engine: Engine, model: PreTrainedModel, scratch: Path, own: Path | None = None
) -> Path:
    """File for an onnxruntime engine, of the `own` folder or written to `scratch`, or UserError."""
    name, write = _FEWER.get(engine, ("model.onnx", None))
    # Another program's file beside the weights may be another model, with other inputs.
    if own is not None and (own / name).is_file() and (own.parent / "classifier.json").is_file():
        return own / name
    if (scratch / name).is_file():
        return scratch / name
    scratch.mkdir(exist_ok=True)
    if write is not None:
        write(onnx_file("onnxruntime", model, scratch, own), scratch / name)
    else:
        write_onnx(to_device(model, "cpu"), scratch / name)
    return scratch / name

"""Device and precision of a trial, and silence of libraries."""

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from threading import RLock
from typing import Literal, TypeVar

import datasets
import torch
import transformers
from torch import Tensor, nn
from tqdm import tqdm

from objectives.errors import UserError, first_line


def choose_device(name: str) -> str:
    """Resolve the name of a torch device: "auto" takes a GPU if there is one. Raises UserError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise UserError(f"device '{name}' cannot be used here ({reason}); try 'cpu'") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is neither a CPU nor a GPU of CUDA; try 'cpu'")
    if device.type == "cuda":
        # cuDNN's attention makes a plan for each shape, and shapes are many here: batches differ in
        # length, cut students in heads. On an H100 steps took 1.1 to 2.1 times as long with it.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return "cpu" if device.type == "cpu" else str(device)  # not "cpu:0"


def visible_gpus() -> list[str]:
    """Names, as in CUDA_VISIBLE_DEVICES, of the GPUs that this process may use."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return named[:count] if named != [""] else [str(index) for index in range(count)]


Precision = Literal["auto", "float32", "bfloat16"]
"""Precision of matmuls in training. "auto" is bfloat16 if the device has instructions for it.
Weights, residual sums, norms, losses and every score are float32."""


def matmul_dtype(precision: Precision, device: str) -> torch.dtype:
    """Resolve a precision to a dtype on a device."""
    half = multiplies_bfloat16(device) if precision == "auto" else precision == "bfloat16"
    return torch.bfloat16 if half else torch.float32


def autocast(dtype: torch.dtype, device: str) -> torch.autocast:
    """Context in which matmuls are of this type, bfloat16 or float32."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def multiplies_bfloat16(device: str) -> bool:
    """Whether the device has instructions for bfloat16; without them it is slower than float32."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device == "cpu" and any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def share_of_training(device: str) -> float:
    """Share of float32's time that a pass in the precision of training takes, about."""
    # Measured on an EPYC with avx512_bf16 for MPNet.
    return 0.55 if multiplies_bfloat16(device) else 1.0


def share_of_int8() -> float:
    """Share of float32's time that a pass in int8 takes on this CPU, about, in onnxruntime."""
    # Measured on an EPYC with AVX512-VNNI for MPNet; without such instructions it is a guess.
    return 1 / 4 if torch.cpu.get_capabilities().get("avx512_vnni") else 1 / 2


def on_device(tensor: Tensor, device: str) -> Tensor:
    """Copy a tensor of the host to the device; a GPU fetches it asynchronously."""
    if device.startswith("cuda"):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_Module = TypeVar("_Module", bound=nn.Module)


def to_device(model: _Module, device: str) -> _Module:
    """Move a model to the device and return it (transformers' own `to` is wrongly typed)."""
    nn.Module.to(model, torch.device(device))
    return model


def frozen(model: _Module, device: str) -> _Module:
    """Move a model to the device in evaluation mode, no weight of which learns; return it."""
    return to_device(model.eval().requires_grad_(False), device)


def quiet_libraries() -> None:
    """Turn off progress bars and reports of transformers and datasets; errors are raised, too."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    tqdm.set_lock(RLock())  # else one between processes, which a worker that is killed leaves


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the warnings of transformers, which `quiet_libraries` silences."""
    texts: list[str] = []
    root, handler = transformers.utils.logging.get_logger("transformers"), BufferingHandler(1000)
    handlers, level = root.handlers, root.level
    with warnings.catch_warnings(record=True, action="always") as raised:
        root.handlers = [handler]
        root.setLevel(logging.WARNING)
        try:
            yield texts
        finally:
            root.handlers = handlers
            root.setLevel(level)
    texts += [record.getMessage() for record in handler.buffer]
    texts += [str(warning.message) for warning in raised]


def out_of_memory(error: BaseException) -> bool:
    """Whether a search failed for lack of memory, of the device or the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    texts = (
        "can't allocate memory",
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",  # what it says where its workspace finds no room
        "calling `cusolverDnCreate(",  # likewise
        "CUDNN_STATUS_ALLOC_FAILED",
    )
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def is_recording() -> bool:
    """Whether GPU work is being recorded instead of run."""
    # A build for CUDA fails at the second question where it finds no driver.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def free_memory() -> None:
    """Free the GPU memory that torch caches, as a smaller population needs other shapes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

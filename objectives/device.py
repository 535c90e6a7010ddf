"""Where a trial runs, and how quiet the libraries are about it."""

from __future__ import annotations

import gc
import os
from typing import TypeVar

import datasets
import torch
import transformers
from torch import nn

from objectives.errors import UserError, first_line


def choose_device(name: str) -> str:
    """The torch device of a name: "auto" takes a GPU where there is one. Raises UserError."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise UserError(f"device '{name}' cannot be used here ({reason}); try 'cpu'") from error
    return str(device)


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES would call each GPU that this process may use."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return named[:count] if named != [""] else [str(index) for index in range(count)]


_Module = TypeVar("_Module", bound=nn.Module)


def to_device(model: _Module, device: str) -> _Module:
    """Move a model to the device and return it (transformers' own `to` is wrongly typed)."""
    nn.Module.to(model, torch.device(device))
    return model


def quiet_libraries() -> None:
    """No progress bars or load reports of transformers and datasets between our own bars.

    What `datasets` logs as an error it raises as well, and we say in a line.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)


def out_of_memory(error: BaseException) -> bool:
    """Whether a search failed for want of memory, the device's or the machine's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    texts = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def free_memory() -> None:
    """Give back what torch holds of a GPU for later: a smaller population needs other shapes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""Checkpoints of long training, from which a restarted process continues."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from objectives.cache import atomic_write, read_cached

_SAID = "said"


def write_checkpoint(file: Path, tensors: Mapping[str, Tensor], more: Mapping[str, object]) -> None:
    """Replace the file by these tensors and `more` as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as unfinished:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        # save_file raises an error of its own where the disk is full.
        unfinished.write_bytes(save(plain, {_SAID: json.dumps(more)}))


def read_checkpoint(
    file: Path, like: Mapping[str, Tensor], note: Callable[[str], object]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors, on the CPU, and JSON; None, after a note, if damaged or unlike `like`."""

    def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            notes = json.loads((stored.metadata() or {})[_SAID])
        for name, tensor in like.items():
            shape, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
            if shape != wanted:
                raise ValueError(f"'{name}' is {shape}, not {wanted}")
        return tensors, notes

    return read_cached(file, read, note)

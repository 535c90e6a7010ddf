"""What a long training leaves behind it as it goes, for whoever goes on after a kill."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from objectives.cache import atomic_write, read_cached

_SAID = "said"


def write_checkpoint(file: Path, tensors: Mapping[str, Tensor], said: Mapping[str, object]) -> None:
    """Replace the file by these tensors and what is said beside them, as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as unfinished:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(plain, unfinished, {_SAID: json.dumps(said)})


def read_checkpoint(
    file: Path, like: Mapping[str, Tensor], note: Callable[[str], object]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What was written to this file, on the CPU: tensors, and what is said beside them. None if
    there is no file, or it is damaged or lacks tensors of the names and shapes of those that it is
    to be `like`, which `note` is told."""

    def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            said = json.loads((stored.metadata() or {})[_SAID])
        for name, tensor in like.items():
            found, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
            if found != wanted:
                raise ValueError(f"'{name}' is {found}, not {wanted}")
        return tensors, said

    return read_cached(file, read, note)

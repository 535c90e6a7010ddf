"""Trained tensors and their Adam as text, for strategies that learn by gradients."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from torch import Tensor


def to_text(parameters: Mapping[str, Tensor], optimizer: torch.optim.Adam) -> str:
    """The parameters and what the optimiser remembers of each: to the last bit."""
    tensors = {f"parameter.{name}": value.detach() for name, value in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value
    return b64encode(save(tensors)).decode()


def from_text(text: str, parameters: Mapping[str, Tensor], optimizer: torch.optim.Adam) -> None:
    """Write what `to_text` gave into these parameters and their optimiser."""
    tensors = load(b64decode(text))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
            optimizer.state.pop(parameter, None)
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if (value := tensors.get(f"{key}.{name}")) is not None:
                    optimizer.state[parameter][key] = value

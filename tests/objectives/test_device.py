"""Choosing a device by name."""

import pytest
import torch

from objectives.device import choose_device
from objectives.errors import UserError


def test_auto_is_a_gpu_only_where_there_is_one() -> None:
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_device_that_is_there_is_taken() -> None:
    assert choose_device("cpu") == "cpu"
    assert choose_device("cpu:0") == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda:99", ""])
def test_a_device_that_cannot_be_used_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"device '{name}' cannot be used here"):
        choose_device(name)
    with pytest.raises(UserError, match="device 'meta' is neither a CPU nor a GPU of CUDA"):
        choose_device("meta")

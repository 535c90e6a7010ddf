"""Checkpoints of long training: what a full disk raises."""

import resource
from pathlib import Path

import pytest
import torch

from objectives.checkpoint import read_checkpoint, write_checkpoint


def test_a_disk_that_is_full_is_an_os_error(tmp_path: Path) -> None:
    """So that the launch ends and its trials wait; safetensors has an error of its own."""
    file, tensors = tmp_path / "checkpoint", {"weight": torch.zeros(10_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checkpoint(file, tensors, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not file.exists()
    write_checkpoint(file, tensors, {"step": 1})
    kept = read_checkpoint(file, tensors, print)
    assert kept is not None
    assert kept[1] == {"step": 1}

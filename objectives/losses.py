"""The task's own loss, on its labels: what alpha learns from, and a teacher."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def sequence_losses(logits_KBC: Tensor, labels_B: Tensor) -> Tensor:
    """The loss of each sequence for each student: (K, B).

    Cross-entropy where the labels are classes (int64); squared error of the one output where they
    are numbers (floating point).
    """
    labels_KB = labels_B.expand(len(logits_KBC), -1)
    if labels_B.is_floating_point():
        return functional.mse_loss(logits_KBC.squeeze(-1), labels_KB, reduction="none")
    return functional.cross_entropy(logits_KBC.transpose(1, 2), labels_KB, reduction="none")


def task_loss(logits_KBC: Tensor, labels_B: Tensor) -> Tensor:
    """The mean over the batch for each student: (K,). Nothing is mixed over the trial axis."""
    return sequence_losses(logits_KBC, labels_B).mean(-1)

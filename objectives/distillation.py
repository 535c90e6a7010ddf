"""What a student learns from its teacher (Jiao et al. 2020, TinyBERT)."""

from __future__ import annotations

from torch import Tensor


def prediction_loss(student_KBC: Tensor, teacher_BC: Tensor) -> Tensor:
    """Soft cross-entropy of the logits at temperature 1: (K,), the mean over the batch.

    Summed over classes as in the paper; its code divides by their number as well.
    """
    return -(teacher_BC.softmax(-1) * student_KBC.log_softmax(-1)).sum(-1).mean(-1)

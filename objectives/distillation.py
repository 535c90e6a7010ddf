"""What a student learns from its teacher (Jiao et al. 2020, TinyBERT)."""

from __future__ import annotations

from torch import Tensor


def prediction_loss(student_KBC: Tensor, teacher_BC: Tensor) -> Tensor:
    """How far the students' outputs (K, B, C) are from the teacher's (B, C): (K,), batch means.

    Soft cross-entropy of the logits at temperature 1, summed over classes as in the paper; its code
    divides by their number as well. With one output (regression) the squared error: a student hears
    its teacher there too, where the paper's code takes the label. So weights learn from no label,
    and any text will do that the teacher can read, augmented text as well.
    """
    if teacher_BC.shape[-1] == 1:
        return (student_KBC - teacher_BC).square().sum(-1).mean(-1)
    return -(teacher_BC.softmax(-1) * student_KBC.log_softmax(-1)).sum(-1).mean(-1)

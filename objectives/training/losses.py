"""Losses on labels, and on a teacher's answers and states (TinyBERT, Jiao et al. 2020).

Shapes: K students, B sequences, S positions, D hidden size of the student, E of the teacher, H
heads, C outputs."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import binary_cross_entropy_with_logits as binary_cross_entropy
from transformers.configuration_utils import PreTrainedConfig

from objectives.errors import UserError
from objectives.students.bert.cutting import shape_of
from objectives.training.population import Trace
from objectives.training.stages import WITH_SCORES, Loss


def sequence_losses(logits_KBC: Tensor, labels_B: Tensor) -> Tensor:
    """Loss (K, B) of each sequence: cross-entropy, squared error or, of several labels, binary."""
    # Classes are int64, numbers floating point, several labels (B, C), whose losses are summed.
    if labels_B.ndim == 2:
        wanted_KBC = labels_B.to(logits_KBC.dtype).expand_as(logits_KBC)
        return binary_cross_entropy(logits_KBC, wanted_KBC, reduction="none").sum(-1)
    labels_KB = labels_B.expand(len(logits_KBC), -1)
    if labels_B.is_floating_point():
        return functional.mse_loss(logits_KBC.squeeze(-1), labels_KB, reduction="none")
    return functional.cross_entropy(logits_KBC.transpose(1, 2), labels_KB, reduction="none")


def task_loss(logits_KBC: Tensor, labels_B: Tensor) -> Tensor:
    """Mean loss over the batch for each student, (K,); students do not mix."""
    return sequence_losses(logits_KBC, labels_B).mean(-1)


def prediction_loss(
    student_KBC: Tensor,
    teacher_BC: Tensor,
    temperature_K: Tensor | None = None,
    *,
    several: bool = False,
) -> Tensor:
    """Soft cross-entropy of the logits, (K,), mean over the batch; binary for several labels."""
    # At temperature T both logits are divided by T, and the loss is multiplied by T^2, so that its
    # gradient keeps its size (Hinton et al. 2015): up to a constant T^2 KL(teacher, student).
    # Summed over classes as in TinyBERT's paper; its code divides by their number as well. A single
    # output is learnt by squared error at any temperature (TinyBERT learns it from labels, which
    # text may lack).
    if teacher_BC.shape[-1] == 1:
        return (student_KBC - teacher_BC).square().squeeze(-1).mean(-1)
    if temperature_K is not None:
        by_K11 = temperature_K[:, None, None]
        softer = prediction_loss(student_KBC / by_K11, teacher_BC / by_K11, several=several)
        return temperature_K.square() * softer
    if several:
        wanted_KBC = teacher_BC.sigmoid().expand_as(student_KBC)
        losses_KBC = binary_cross_entropy(student_KBC, wanted_KBC, reduction="none")
        return losses_KBC.sum(-1).mean(-1)
    return -(teacher_BC.softmax(-1) * student_KBC.log_softmax(-1)).sum(-1).mean(-1)


def intermediate_loss(
    student: Trace,
    teacher: Trace,
    attended_BS: Tensor,
    heads: Sequence[tuple[Tensor, Tensor]],
    fit: Mapping[str, Tensor],
) -> Tensor:
    """Loss (K,) of hidden states (`hidden_loss`) and attention scores against the teacher's."""
    # `heads`: for each layer of the student which head of the teacher each of its heads is, (K, H),
    # and whether it takes part: a head that was cut has no scores. Padding counts for nothing
    # (TinyBERT's code takes the mean over all, so scores weigh less in a padded batch).
    layers = len(student.scores), len(teacher.scores)
    valid_BS = attended_BS.to(student.hidden[0].dtype)
    valid_BSS = valid_BS[:, :, None] * valid_BS[:, None, :]
    total = student.hidden[0].new_zeros(len(student.hidden[0]))
    for layer, (scores, (which_KH, part_KH)) in enumerate(zip(student.scores, heads, strict=True)):
        if scores is None:
            continue
        reference = teacher.scores[teaching_layer(layer + 1, *layers) - 1]
        assert reference is not None, "a teacher is whole"
        wanted_KBHSS = reference[0][:, which_KH].transpose(0, 1)
        errors_KBH = ((scores - wanted_KBHSS).square() * valid_BSS[:, None]).sum((-1, -2))
        parts = part_KH.sum(-1).clamp_min(1) * valid_BSS.sum()
        total = total + (errors_KBH * part_KH[:, None]).sum((-1, -2)) / parts
    return total + hidden_loss(student, teacher, attended_BS, fit)


def hidden_loss(
    student: Trace, teacher: Trace, attended_BS: Tensor, fit: Mapping[str, Tensor]
) -> Tensor:
    """Loss (K,) of hidden states, layer m of the student against `teaching_layer` g(m)."""
    # Mean squared errors, summed over the layers. Padding counts for nothing (TinyBERT's code
    # counts it, so that its loss depends on how a batch was padded). Embeddings are frozen: they
    # count only where a projection, `fit` "weight" (K, E, D) and "bias" (K, E), learns from them.
    # What enters a layer counts by the mask of that layer, and what the last gives in full
    # (DynaBERT, Hou et al. 2020).
    layers = len(student.hidden) - 1, len(teacher.hidden) - 1
    weight_BS = _token_weights(attended_BS, teacher)
    total = student.hidden[0].new_zeros(len(student.hidden[0]))
    for layer in range(0 if fit else 1, len(student.hidden)):
        wanted = teacher.hidden[teaching_layer(layer, *layers)]
        errors_KBS = _squared_errors(student.hidden[layer], wanted, fit)
        if layer < len(student.masks) and (kept_KB := student.masks[layer]) is not None:
            errors_KBS = errors_KBS * kept_KB.detach()[..., None]
        total = total + (errors_KBS * weight_BS).sum((-1, -2))
    return total


def hint_loss(
    student: Trace, teacher: Trace, attended_BS: Tensor, fit: Mapping[str, Tensor]
) -> Tensor:
    """Loss (K,) of the hidden states of the middle layers (FitNets, Romero et al. 2015)."""
    middle, wanted = (trace.hidden[len(trace.hidden) // 2] for trace in (student, teacher))
    errors_KBS = _squared_errors(middle, wanted, fit)
    return (errors_KBS * _token_weights(attended_BS, teacher)).sum((-1, -2))


def _token_weights(attended_BS: Tensor, teacher: Trace) -> Tensor:
    return attended_BS / (attended_BS.sum() * teacher.hidden[0].shape[-1])


def _squared_errors(states: Tensor, wanted_BSE: Tensor, fit: Mapping[str, Tensor]) -> Tensor:
    """Squared errors (K, B, S) of hidden states (K, B, S, D), summed over E."""
    if fit:
        states = torch.einsum("kbsd,ked->kbse", states, fit["weight"]) + fit["bias"][:, None, None]
    return functional.mse_loss(states, wanted_BSE.expand_as(states), reduction="none").sum(-1)


def teaching_layer(layer: int, student_layers: int, teacher_layers: int) -> int:
    """Teacher's layer g(m) = floor(m L_T / L_S) for the student's m; 0 is the embeddings."""
    return layer * teacher_layers // student_layers


def check_comparable(
    loss: Loss, student_config: PreTrainedConfig, teacher_config: PreTrainedConfig
) -> None:
    """Raise UserError unless the loss can compare the student's layers with the teacher's."""
    if loss == "prediction":
        return
    student, teacher = shape_of(student_config), shape_of(teacher_config)
    if loss != "hint" and student.layers > teacher.layers:
        raise UserError(
            f"a loss on hidden states maps each layer of the student to one of the teacher: the "
            f"student has {student.layers} layers, more than the teacher's {teacher.layers}; use "
            "stages with the loss 'prediction' or 'hint', or another student"
        )
    if loss in WITH_SCORES and student.heads != teacher.heads:
        raise UserError(
            f"the loss '{loss}' compares attention head by head: the student has "
            f"{student.heads} a layer, the teacher {teacher.heads}; "
            "use stages with the loss 'prediction', or another student"
        )

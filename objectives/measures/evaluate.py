"""Score a cut classifier: metric on a split, divergence from the teacher, parameters."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel

from objectives.device import to_device
from objectives.measures.bootstrap import Interval, bootstrap_interval
from objectives.measures.thresholds import (
    as_probabilities,
    cross_fitted,
    decided,
    from_probabilities,
)
from objectives.metric import Metric, metric_value
from objectives.progress import Progress
from objectives.students.bert.packing import PackedEmbedding, PackedLinear
from objectives.text.data import Split

Objective = Literal["metric", "divergence"]
"""Objective by which a study compares students: maximised metric or minimised divergence."""
EVALUATION_BATCH = 64
"""Sequences in one forward pass on a CPU."""
_ON_GPU = (256, 2**15)
"""Sequences in one forward pass on a GPU, or more up to this many tokens: a host launches a pass in
the time in which an H200 computes some thousands of tokens."""


def sequences_a_pass(split: Split, device: str) -> int:
    """Number of sequences in a forward pass over a split."""
    if device == "cpu":
        return EVALUATION_BATCH
    sequences, tokens = _ON_GPU
    return max(sequences, tokens // int(split.lengths.max(initial=1)))


@torch.no_grad()
def predict(
    model: PreTrainedModel, split: Split, device: str, progress: Progress | None = None
) -> Tensor:
    """Logits (rows, C) of the split in its order, on the CPU; `progress` counts the batches."""
    to_device(model, device).train(False)
    return predict_with(
        lambda inputs: model(**inputs, return_dict=True).logits, split, device, progress
    )


def predict_with(
    run: Callable[[Mapping[str, Tensor]], Tensor],
    split: Split,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Tensor:
    """`predict` with any function from a batch's inputs on the device to logits (batch, C)."""
    answers = []
    for batch in split.in_order(sequences_a_pass(split, device), device):
        answers.append(run(batch.inputs).float())
        if progress is not None:
            progress.advance()
    longest_first = torch.cat(answers).cpu()
    logits = torch.empty_like(longest_first)
    logits[torch.from_numpy(split.longest_first())] = longest_first
    return logits


def score(
    model: PreTrainedModel,
    split: Split,
    metric: Metric,
    device: str,
    *,
    own_thresholds: bool = False,
) -> float:
    """Metric of the model on the split; its labels may have `own_thresholds`."""
    logits = predict(model, split, device)
    if own_thresholds:
        logits = torch.from_numpy(cross_fitted(metric, split.labels, logits.numpy()))
    return metric_of(logits, split, metric)


def less_thresholds(
    logits: Mapping[str, Tensor], select: Split, metric: Metric, shares: list[float] | None = None
) -> tuple[dict[str, Tensor], list[float]]:
    """`thresholds.decided` of tensors; the thresholds, also those given, as probabilities."""
    arrays = {role: of_role.numpy() for role, of_role in logits.items()}
    left, thresholds = decided(metric, select.labels, arrays, from_probabilities(shares))
    tensors = {role: torch.from_numpy(of_role) for role, of_role in left.items()}
    return tensors, as_probabilities(thresholds)


def metric_of(logits: Tensor, split: Split, metric: Metric) -> float:
    """Metric of logits (rows, C) in the order of the split; nan if any is nan or infinite."""
    if not logits.isfinite().all():
        return float("nan")
    answers, classes = split.answers(logits).numpy(), logits.shape[-1]
    return metric_value(metric, split.labels, answers, classes=classes)


def metric_with_interval(logits: Tensor, split: Split, metric: Metric) -> tuple[float, Interval]:
    """`metric_of` with its confidence interval."""
    value = metric_of(logits, split, metric)
    if not math.isfinite(value):
        return value, (value, value)
    answers, classes = split.answers(logits).numpy(), logits.shape[-1]
    return value, bootstrap_interval(metric, split.labels, answers, classes)


def divergence(logits: Tensor, teacher: Tensor, split: Split) -> float:
    """Mean over the rows of KL(teacher || student) in nats, of logits (rows, C); for regression the
    mean squared difference. 0 if they are equal; nan if a logit is nan or infinite."""
    student, target = logits.double(), teacher.double()  # float32 would lose the least divergences
    if split.regression:
        return float((student - target).square().mean())
    if split.several:  # a label is there or not: two outcomes each, of logits z and 0
        student, target = (torch.stack([z, torch.zeros_like(z)], -1) for z in (student, target))
    student, target = student.log_softmax(-1), target.log_softmax(-1)
    value = float(kl_div(student, target, reduction="batchmean", log_target=True))
    return 0.0 if value < 0 else value  # rounding may take equal answers below 0


def nearness(model: PreTrainedModel, split: Split, teacher: Tensor, device: str) -> float:
    """Minus the `divergence` of the model, so that higher is better, as for a metric."""
    return -divergence(predict(model, split, device), teacher, split)


def count_parameters(model: PreTrainedModel) -> int:
    """Number of parameters, embeddings included, whatever the bits in which they are kept."""
    packed = (m for m in model.modules() if isinstance(m, PackedLinear | PackedEmbedding))
    plain = sum(parameter.numel() for parameter in model.parameters())
    return plain + sum(module.size for module in packed)

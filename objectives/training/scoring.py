"""Score the answers of candidates on the alpha split."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from objectives.measures.evaluate import EVALUATION_BATCH
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.text.data import Batch
from objectives.training.losses import task_loss

_Candidate = TypeVar("_Candidate")


def answer_score(
    model: Callable[[Mapping[str, Tensor]], Any], rows: Sequence[Batch], problem: Problem
) -> float:
    """`logits_score` of a model's answers to the inputs of rows of alpha."""
    return logits_score(lambda batch: model(batch.inputs).logits, rows, problem)


@torch.no_grad()
def logits_score(
    logits: Callable[[Batch], Tensor], rows: Sequence[Batch], problem: Problem
) -> float:
    """exp(-L), where L is the task's loss of logits (B, C) on rows of alpha (for regression
    relative to their variance, of several labels their mean); 0 if L is not a number."""
    numbers, unit = problem.alpha.labels, 1.0
    if problem.alpha.regression:
        unit = max(float(numbers.var()), 1e-12)
    elif problem.alpha.several:
        unit = float(numbers.shape[1])
    losses = [len(batch.rows) * task_loss(logits(batch)[None], batch.labels) for batch in rows]
    loss = float(sum(losses)) / sum(len(batch.rows) for batch in rows) / unit
    return 0.0 if math.isnan(loss) else math.exp(-loss)


def best_of(
    pairs: Iterable[tuple[_Candidate, float]], count: int, progress: Progress, stage: str = "choose"
) -> _Candidate:
    """Candidate of the highest score among this many; the first of equals."""
    progress.begin(stage, count)
    scored = []
    for pair in pairs:
        scored.append(pair)
        progress.advance()
    return max(scored, key=lambda pair: pair[1])[0]


def all_alpha(problem: Problem) -> list[Batch]:
    """Batches of every row of the alpha split once."""
    return list(problem.alpha.in_order(EVALUATION_BATCH, problem.device))

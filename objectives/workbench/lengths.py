"""The cost and the worth of `Task.max_length`: a teacher's metric at several, before any
student."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import torch
from torch import Tensor

from objectives.device import choose_device
from objectives.errors import UserError, spelled
from objectives.measures.bootstrap import Interval
from objectives.measures.evaluate import metric_with_interval
from objectives.measures.thresholds import cross_fitted
from objectives.session import Session
from objectives.text.data import Truncation
from objectives.text.task import Task, may_keep_tails
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher


@dataclass(frozen=True)
class AtLength:
    """The teacher on the selection split, its texts cut off at one length."""

    max_length: int
    """In tokens."""
    truncation: Truncation
    """Truncation of longer texts."""
    cut_off: float
    """Share of the texts that are longer."""
    tokens: float
    """Mean of a text that was cut off or not."""
    seconds: float
    """Until the teacher has answered all rows."""
    metric: float
    """The task's metric; agreement is with the answers at the greatest length."""
    interval: Interval
    """95% bootstrap interval of `metric`."""


@spelled
def lengths(
    task: Task,
    teacher: Teacher,
    max_lengths: Sequence[int] = (512, 256, 128, 64),
    *,
    device: str = "auto",
) -> Iterator[AtLength]:
    """The metric of a teacher against `Task.max_length`, greatest first, by both ways to cut texts
    off. A checkpoint without a classifier is fine-tuned again for each.

    Args:
        task: the texts; its own `max_length` and `truncation` count for nothing.
        teacher: one or several checkpoints; its `trials` count for nothing.
        max_lengths: in tokens. Those that the teacher does not take are left out, unless all are.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Returns:
        A row for each; where no text is cut off, and of pairs of texts, those of "head" alone.

    Raises:
        UserError: for what does not fit together, and for a teacher that is no model.
    """
    if not teacher.checkpoints:
        raise UserError("Teacher.answers has no tokens to be cut off; name a checkpoint")
    longest = min(
        (most for model in teacher.models if (most := model.longest)), default=max(max_lengths)
    )
    lengths_read = [length for length in max_lengths if length <= longest] or list(max_lengths)
    teacher = replace(teacher, trials=0)
    inputs = read_inputs(replace(task, max_length=min(lengths_read), truncation="head"), teacher)
    first: Tensor | None = None
    for length, way in product(sorted(lengths_read, reverse=True), get_args(Truncation)):
        if way != "head" and not may_keep_tails(task, length):
            continue
        shortened = replace(inputs, task=replace(task, max_length=length, truncation=way))
        select, metric = shortened.split("select"), task.metric
        if way != "head" and not select.truncated:
            continue
        with TemporaryDirectory() as cache:
            session = Session(cache=Path(cache), device=choose_device(device))
            train = shortened.split("train") if teacher.fine_tuned else None
            answering = shortened.answering(train, session)
            started = time.perf_counter()
            logits = answering.answer(select, shortened.text.roles["select"])
            seconds = time.perf_counter() - started
        first = logits if first is None else first
        judged = select.answered(first)
        if task.own_thresholds:
            logits = torch.from_numpy(cross_fitted(metric, judged.labels, logits.numpy()))
        yield AtLength(
            length,
            way,
            select.truncated / len(select),
            float(select.lengths.mean()),
            seconds,
            *metric_with_interval(logits, judged, metric),
        )

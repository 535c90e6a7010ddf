"""Try a teacher before any student: at several lengths of its texts, or with several settings."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from objectives.device import choose_device
from objectives.errors import UserError, spelled
from objectives.measures.bootstrap import Interval
from objectives.measures.evaluate import metric_with_interval, predict_with
from objectives.measures.thresholds import cross_fitted
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.data import Split, Truncation
from objectives.text.task import Task, may_keep_tails
from objectives.training.losses import task_loss
from objectives.workbench.answering import tokens_of
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher import Reading, Teacher, fine_tuned, trained


@dataclass(frozen=True)
class AtLength:
    """Scores of the teacher on the selection split, with texts cut to one length."""

    max_length: int
    """Length in tokens."""
    truncation: Truncation
    """Truncation of longer texts."""
    cut_off: float
    """Share of the texts that are longer."""
    tokens: float
    """Mean number of tokens of a text after truncation."""
    seconds: float
    """Seconds until the teacher has answered all rows."""
    metric: float
    """Metric of the task; agreement is with the answers at the greatest length."""
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


Report = Callable[[int, float], None]
"""Function of the finished epoch, from 1, and the mean loss on the selection split: nats of a
class, of several labels their sum, of numbers the squared error. It may raise, to stop."""
FineTune = Callable[[Mapping[str, Any], Report], tuple[PreTrainedModel, float]]
"""Function that fine-tunes a `Teacher` with these settings, to the classifier and its last loss."""


def tune(inputs: Inputs, session: Session, choose: Callable[[FineTune], PreTrainedModel]) -> None:
    """Let `choose` fine-tune the study's teacher and store it in the cache, where a launch looks
    for it; if one is there already, nothing happens. Only one process at a time may do so."""
    teacher, text, task = inputs.teacher, inputs.text, inputs.task
    (checkpoint,) = teacher.models

    @cache  # a teacher that is kept already needs no selection split
    def split(role: str) -> Split:
        return tokens_of(
            text.roles[role], role, checkpoint.tokenizer, task.max_length, task.truncation
        )

    @torch.no_grad()
    def loss_of(model: Reading) -> float:
        select = split("select")
        logits = predict_with(lambda given: model(**given).logits, select, session.device)
        return float(task_loss(logits[None], torch.from_numpy(select.labels)))

    def fine_tune(settings: Mapping[str, Any], report: Report) -> tuple[PreTrainedModel, float]:
        losses: list[float] = []

        def judge(model: Reading) -> None:
            losses.append(loss_of(model))
            report(len(losses), losses[-1])

        settled = replace(teacher, **settings)
        model = trained(settled, checkpoint, text.label_names, split("train"), session, judge)
        return model.cpu(), losses[-1]

    fine_tuned(
        teacher,
        checkpoint,
        text,
        split("train"),
        lambda folder: Checkpoint(folder).load_classifier(),
        session=session,
        make=lambda: choose(fine_tune),
    )

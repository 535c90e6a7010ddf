"""The teacher, fine-tuned in several ways on the same rows; one of them is kept."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from objectives.measures.evaluate import predict_with
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.data import Split
from objectives.training.losses import task_loss
from objectives.workbench.answering import tokens_of
from objectives.workbench.inputs import Inputs
from objectives.workbench.teacher import Reading, fine_tuned, trained

Report = Callable[[int, float], None]
"""Hears the number of an epoch that is over, from 1, and the mean loss on the selection split: nats
of a class, of several labels their sum, of numbers the squared error. It may raise, to stop."""
FineTune = Callable[[Mapping[str, Any], Report], tuple[PreTrainedModel, float]]
"""The classifier of a `Teacher` with these settings, and its last loss."""


def tune(inputs: Inputs, session: Session, choose: Callable[[FineTune], PreTrainedModel]) -> None:
    """Leave in the cache what `choose` makes the teacher of the study, where a launch looks for it
    for it; if one is there already, nothing happens. Only one process at a time may."""
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

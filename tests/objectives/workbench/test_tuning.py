"""A teacher that is fine-tuned in several ways, of which one is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import log_loss, mean_squared_error
from transformers import PreTrainedModel

from objectives.session import Session
from objectives.text.task import Task
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.tuning import FineTune, tune
from tests.any_classifiers import KINDS, write_classifier
from tests.conftest import graded_rows, planted_rows

SMALL = {"train": 64, "alpha": 16, "select": 48, "heldout": 48}


def of_several_labels() -> Dataset:
    """The planted rows; each has its own label or its own and another."""
    rows = planted_rows().to_dict()
    both = zip(rows["text"], rows["label"], strict=True)
    labels = [sorted({own, "sad"} if "bab" in text else {own}) for text, own in both]
    return Dataset.from_dict({"text": rows["text"], "label": labels})


def mean_loss(task: Task, logits: np.ndarray, labels: np.ndarray) -> float:
    """By scikit-learn."""
    if task.metric == "pearson_spearman":
        return float(mean_squared_error(labels, logits[:, 0]))
    if task.multi_label:
        chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
        return sum(log_loss(own, chance) for own, chance in zip(labels.T, chances.T, strict=True))
    exp = np.exp(logits.astype(np.float64))
    return float(log_loss(labels, exp / exp.sum(1, keepdims=True), labels=[0, 1, 2]))


@pytest.mark.parametrize("kind", ["classes", "numbers", "several labels", "xlnet"])
def test_the_kept_teacher_is_that_of_its_settings_and_its_loss_that_of_its_answers(
    kind: str, planted_task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    task, checkpoint = replace(planted_task, **SMALL), tiny_bert
    if kind == "numbers":
        task = replace(task, data=graded_rows, metric="pearson_spearman")
    if kind == "several labels":
        task = replace(task, data=of_several_labels, metric="micro_f1", multi_label=True)
    if kind in KINDS:
        checkpoint = write_classifier(kind, tmp_path / kind)
    plain = Teacher(checkpoint=checkpoint, epochs=2, batch_size=16, learning_rate=1e-3, warmup=0.3)
    heard: dict[int, float] = {}

    def choose(fine_tune: FineTune) -> PreTrainedModel:
        settings = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 16, "warmup": 0.3}
        model, loss = fine_tune(settings, heard.__setitem__)
        assert loss == heard[2]
        return model

    def answers(inputs: Inputs, *, fine_tune: bool) -> torch.Tensor:
        given = inputs.split("train"), Session(cache=tmp_path)
        select = inputs.split("select")
        answering = inputs.answering(*given, fine_tune=fine_tune)
        return answering.answer(select, inputs.text.roles["select"])

    tuned = read_inputs(task, Teacher(checkpoint=checkpoint, trials=3))
    tune(tuned, Session(cache=tmp_path), choose)
    tune(tuned, Session(cache=tmp_path), lambda _: pytest.fail("it is there already"))
    assert sorted(heard) == [1, 2]
    kept = answers(tuned, fine_tune=False)
    assert torch.equal(kept, answers(read_inputs(task, plain), fine_tune=True))
    wanted = mean_loss(task, kept.numpy(), tuned.split("select").labels)
    assert heard[2] == pytest.approx(wanted, rel=1e-4)

"""What a saved model gets on samples of a split: measured once, the same rows for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.comparison import Resampled
from objectives.measures.evaluate import score
from objectives.problem import Problem
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench


@pytest.fixture
def saved(tmp_path: Path, workbench: Workbench, problem: Problem) -> Path:
    problem.teacher.save_pretrained(tmp_path / "model")
    workbench.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def resampled(planted_task: Task, checkpoint: str, kept: Path) -> Resampled:
    inputs = read_inputs(planted_task, Teacher(checkpoint=checkpoint))
    return Resampled(inputs, kept=kept, device="cpu")


def test_it_spreads_around_the_metric_of_the_split(
    saved: Path, planted_task: Task, tiny_bert: str, workbench: Workbench
) -> None:
    samples = resampled(planted_task, tiny_bert, saved.parent / "kept")
    for role, split in (("select", workbench.select), ("heldout", workbench.heldout)):
        values = samples(saved, role)
        expected = score(workbench.problem.teacher, split, planted_task.metric, "cpu")
        assert values.shape == (500,)
        assert values.mean() == pytest.approx(expected, abs=0.02)


def test_a_model_is_measured_once_and_other_weights_are_another_model(
    saved: Path, planted_task: Task, tiny_bert: str
) -> None:
    kept = saved.parent / "kept"
    first = resampled(planted_task, tiny_bert, kept)(saved, "select")
    (file,) = kept.glob("*.npy")
    np.save(file, first + 1)
    assert (resampled(planted_task, tiny_bert, kept)(saved, "select") == first + 1).all()
    file.write_bytes(file.read_bytes()[:200])
    with pytest.warns(UserWarning, match="is damaged .* made anew"):
        assert (resampled(planted_task, tiny_bert, kept)(saved, "select") == first).all()
    weights = load_file(saved / "model.safetensors")
    weights["classifier.weight"] = torch.zeros_like(weights["classifier.weight"])
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    other = resampled(planted_task, tiny_bert, kept)(saved, "select")
    assert other.mean() < 0.6
    assert len(list(kept.glob("*.npy"))) == 2

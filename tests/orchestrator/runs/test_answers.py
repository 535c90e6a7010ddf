"""Answers that are kept beside trials: those of the models, and readable without torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from maskfront import Run, Study, load_run
from objectives.delivery.exported import load_model
from objectives.measures.evaluate import predict
from objectives.workbench.inputs import read_inputs
from orchestrator.runs.answers import read_answers, read_rows, write_answers, write_rows
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from tests.launching import run_study


@pytest.fixture
def run(study: Study, tmp_path: Path) -> Run:
    run_study(study, tmp_path / "run")
    return load_run(tmp_path / "run")


def test_they_are_those_of_a_fresh_pass_of_the_saved_model(run: Run, study: Study) -> None:
    rows = read_rows(run)
    assert rows is not None
    splits = read_inputs(study.task, study.teacher, seq_len=study.seq_len).judging()
    assert run.finished
    for trial in run.finished:
        answers = read_answers(run, trial.number)
        assert answers is not None
        model = load_model(RunFolder(run.folder).model(trial.number))
        for split in splits:
            assert rows.labels[split.role].tolist() == split.labels.tolist()
            fresh = predict(model, split, "cpu").numpy()
            np.testing.assert_allclose(answers[split.role], fresh, atol=1e-5)
        right = answers["heldout"].argmax(-1) == rows.labels["heldout"]
        assert right.mean() == pytest.approx(trial.result.heldout_metric)
    right = rows.unpruned["select"].argmax(-1) == rows.labels["select"]
    assert right.mean() == pytest.approx(run.unpruned.metric)


def test_a_run_without_them_is_still_read(run: Run) -> None:
    folder = RunFolder(run.folder)
    folder.rows.write_bytes(b"damaged")
    assert read_rows(run) is None
    folder.rows.unlink()
    folder.answers(run.finished[0].number).unlink()
    assert read_rows(run) is None
    assert read_answers(run, run.finished[0].number) is None
    assert load_run(run.folder).front == run.front


@pytest.mark.parametrize("of", ["other rows", "other classes", "no role"])
def test_answers_of_another_run_are_none(tmp_path: Path, of: str) -> None:
    folder = RunFolder(tmp_path)
    run = cast("RunRecord", SimpleNamespace(folder=tmp_path))
    rng = np.random.default_rng(0)
    logits = {role: rng.normal(size=(6, 3)).astype(np.float32) for role in ("select", "heldout")}
    labels = {role: np.zeros(6, dtype=np.int64) for role in logits}
    folder.answers(3).parent.mkdir(parents=True)
    write_rows(folder, labels, logits, {})
    write_answers(folder.answers(3), logits)
    assert read_rows(run) is not None
    assert read_answers(run, 3) is not None
    changed = {
        "other rows": logits | {"select": logits["select"][:-1]},
        "other classes": {role: own[:, :2] for role, own in logits.items()},
        "no role": {"select": logits["select"]},
    }[of]
    save_file({role: own.copy() for role, own in changed.items()}, folder.answers(3))
    assert read_answers(run, 3) is None
    if of != "other classes":
        kept = {f"labels.{role}": own for role, own in labels.items()} | changed
        save_file({name: own.copy() for name, own in kept.items()}, folder.rows)
        assert read_rows(run) is None

"""A teacher that is made again is the same up to rounding, or the run refuses it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from objectives.workbench import teacher
from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import Study
from tests.launching import run_study
from tests.orchestrator.workers.test_launch import scripted


def comes_out_otherwise(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Fine-tuning gives weights that differ by this share."""
    trained = teacher.trained

    def other(*arguments: Any) -> Any:
        model = trained(*arguments)
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + by * torch.randn(weight.shape, generator=noise))
        return model

    monkeypatch.setattr(teacher, "trained", other)


def test_a_teacher_that_comes_out_otherwise_is_refused(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    one, two = scripted(study, "result"), scripted(study, "result", "result")
    run_study(one, out=folder.path, device="cpu")
    rows = folder.rows.read_bytes()
    shutil.rmtree(folder.cache)
    with monkeypatch.context() as patch:
        comes_out_otherwise(patch, by=0.3)
        for again in (two, one):  # the second has nothing to do but the teacher
            with pytest.raises(RunError, match=r"logits on the selection rows differ by \d+%"):
                run_study(again, out=folder.path, device="cpu")
    assert folder.rows.read_bytes() == rows
    shutil.rmtree(folder.cache)
    with monkeypatch.context() as patch:
        comes_out_otherwise(patch, by=1e-5)  # as another processor rounds
        run = run_study(two, out=folder.path, device="cpu")
    assert len(run.finished) == 2
    folder.rows.write_bytes(bytes(len(rows)))  # as a power cut leaves a file
    shutil.rmtree(folder.cache)
    run_study(scripted(study, "result", "result", "result"), out=folder.path, device="cpu")
    assert folder.rows.read_bytes() == rows

"""A teacher that is made again is the same up to rounding, or the run refuses it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from objectives.workbench import teacher
from orchestrator.errors import RunError
from orchestrator.runs.answers import check_teachers, write_rows
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import Study
from tests.launching import run_study
from tests.orchestrator.methods import scripted


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


def test_rounding_passes_and_another_fine_tuning_does_not(tmp_path: Path) -> None:
    folder, draws = RunFolder(tmp_path), np.random.default_rng(0)
    own = draws.normal(size=(64, 3)).astype(np.float32)
    roles = {"select": own, "heldout": own}
    write_rows(folder, {role: own.argmax(-1) for role in roles}, roles, {"": own, "b": 50 * own})
    noise = draws.normal(size=own.shape).astype(np.float32)
    check_teachers(folder, {"": own + 1e-3 * noise, "b": 50 * (own + 1e-3 * noise)})
    check_teachers(RunFolder(tmp_path / "new"), {"": noise})
    for others in ({"": own + 0.1 * noise, "b": 50 * own}, {"": own, "b": own}, {"": own * np.nan}):
        with pytest.raises(RunError, match=r"made again, and its logits .* differ by \S+% of"):
            check_teachers(folder, others)


@pytest.mark.slow
def test_a_teacher_that_comes_out_otherwise_is_refused(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    one, two = scripted(study, "result"), scripted(study, "result", "result")
    run_study(one, folder.path)
    rows = folder.rows.read_bytes()
    shutil.rmtree(folder.cache)
    with monkeypatch.context() as patch:
        comes_out_otherwise(patch, by=0.3)
        for again in (two, one):  # the second has nothing to do but the teacher
            with pytest.raises(RunError, match=r"logits on the selection rows differ by \d+%"):
                run_study(again, folder.path)
    assert folder.rows.read_bytes() == rows
    shutil.rmtree(folder.cache)
    with monkeypatch.context() as patch:
        comes_out_otherwise(patch, by=1e-5)  # as another processor rounds
        run = run_study(two, folder.path)
    assert len(run.finished) == 2
    folder.rows.write_bytes(bytes(len(rows)))  # as a power cut leaves a file
    shutil.rmtree(folder.cache)
    run_study(scripted(study, "result", "result", "result"), folder.path)
    assert folder.rows.read_bytes() == rows

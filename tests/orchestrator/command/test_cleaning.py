"""What `clean` removes of a run, what it leaves, and that the run goes on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from orchestrator.runs.records import load_optuna_study
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import Study
from orchestrator.workers.heartbeat import Heartbeat
from tests.command_line import assert_one_clear_line, maskfront
from tests.launching import run_study


def test_a_cleaned_run_keeps_its_teacher_and_trials(study: Study, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    before = run_study(study, folder.path, trials=2)
    made = {entry.name for entry in folder.cache.iterdir()}
    (teacher,) = (name for name in made if re.fullmatch("[0-9a-f]{16}", name))
    assert made > {teacher}
    table = folder.cache / "latency-0.json"
    table.write_text("{}")
    (folder.cache / "shared-0").mkdir()
    (folder.cache / "shared-0" / "weights").write_bytes(bytes(1000))
    (folder.cache / "elsewhere").symlink_to(tmp_path)
    lent = folder.cache / "lent-0.npy"
    lent.write_bytes(bytes(5000))
    os.link(lent, tmp_path / "lent")

    with Heartbeat(load_optuna_study(folder.path), folder, "cpu"):
        assert_one_clear_line(maskfront("clean", folder.path, "--yes"), "is at work .*; wait for")
    shown = maskfront("clean", folder.path)
    files = [file for file in folder.cache.rglob("*") if file.is_file() and file != table]
    free = sum(f.stat().st_size for f in files if f != lent and teacher not in f.parts)
    assert f"run/cache: {free:,} bytes in {len(made) + 1} files" in shown.stdout
    assert "--yes removes them" in shown.stdout
    assert lent.exists(), "it was only counted"

    assert maskfront("clean", folder.path, "--yes").returncode == 0
    assert {entry.name for entry in folder.cache.iterdir()} == {teacher, table.name, "elsewhere"}
    assert (tmp_path / "lent").stat().st_size == 5000, "another run's"
    assert "nothing to free" in maskfront("clean", folder.path).stdout

    after = run_study(study, folder.path, trials=3)
    assert after.trials[:2] == before.trials
    assert len(after.finished) == 3
    assert made <= {entry.name for entry in folder.cache.iterdir()}, "made again"

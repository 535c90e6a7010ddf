"""The verbs that read models of a run in which one thing was changed: right, or one line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from objectives.delivery import deployed
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study_file import load_study
from tests.command_line import assert_one_clear_line, maskfront
from tests.launching import run_study
from tests.reports.mutated import change_attribute, change_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_study_file: Path) -> Path:
    folder = tmp_path_factory.mktemp("mutated") / "run"
    study = load_study(tiny_study_file)
    run_study(replace(study, trials=2), folder)
    assert (
        maskfront("bench", folder, "--engine", "eager", "--rounds", 1, "--batch", 1).returncode == 0
    )
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("verb", ["export", "bench", "cascade"])
def test_a_verb_reads_a_changed_run_or_refuses_it_in_one_line(
    whole: Path, tmp_path: Path, tiny_study_file: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Timing texts takes long and reads nothing of the run.
    monkeypatch.setattr(
        deployed, "text_to_label", lambda models, texts, **_: np.ones((len(texts), len(models)))
    )
    arguments = {
        "export": ("--knee", "--out"),
        "bench": ("--engine", "eager", "--rounds", 1, "--batch", 1),
        "cascade": ("--study-file", tiny_study_file, "--engine", "onnxruntime", "--out"),
    }[verb]
    wrong = {}
    for seed in range(4 if verb == "cascade" else 25):
        folder = RunFolder(shutil.copytree(whole, tmp_path / "mutated"))
        random = Random(seed)
        if random.random() < 0.5:
            how = change_attribute(folder, random)
        else:
            trial = sorted(folder.trial(random.randrange(2)).glob("*.[cjs]*"))
            how = change_file(random.choice([folder.bench, folder.rows, *trial]), random)
        out = [tmp_path / "out"] if arguments[-1] == "--out" else []
        try:
            done = maskfront(verb, folder.path, *arguments, *out)
            if done.returncode:  # the lines before it are progress
                done.stderr = done.stderr.splitlines()[-1]
                assert_one_clear_line(done, "")
        except Exception as error:
            wrong[f"{seed}, {how}"] = f"{type(error).__name__}: {error}"[:300]
        for made in (tmp_path / "out", tmp_path / "mutated"):
            shutil.rmtree(made, ignore_errors=True)
    assert wrong == {}

"""Aims of a study: trials that miss one are on no front, and samplers know by how far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from maskfront import Run, Study, load_run
from reports.pareto import state_text
from tests.launching import run_study
from tests.orchestrator.methods import scripted


@pytest.fixture
def launched(study: Study, tmp_path: Path) -> Run:
    """Two trials of one size; the first aim is met by both, the second by none."""
    tried = scripted(study, "result", "result")
    tried = replace(tried, trials=2, at_least={"metric": 0.0}, at_most={"params": 10})
    run_study(tried, tmp_path / "run")
    return load_run(tmp_path / "run")


def test_a_model_that_misses_an_aim_is_on_no_front(launched: Run) -> None:
    assert launched.front == []
    for trial in launched.finished:
        assert trial.result.violation <= 0
        assert trial.result.aims["metric >= 0"] <= 0
        assert trial.result.aims["params <= 10"] == pytest.approx(trial.result.params / 10 - 1)
        assert trial.result.missed == "misses params <= 10"
        assert state_text(trial) == "misses an aim"


def test_optuna_knows(launched: Run) -> None:
    study = optuna.load_study(
        study_name=launched.name, storage=f"sqlite:///{launched.folder}/study.db"
    )
    assert study.best_trials == []
    assert study.trials[0].constraints.keys() == {"budget", "metric >= 0", "params <= 10"}


def test_aims_are_part_of_what_a_study_is(launched: Run) -> None:
    assert launched.definition["at_least.metric"] == "0.0"
    assert launched.definition["at_most.params"] == "10"

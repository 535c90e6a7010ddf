"""Trials that do not count: another program's are left alone, damaged ones are trained again."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.trial import TrialState

from orchestrator.runs.records import RETRY_OF, RunRecord, load_optuna_study, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status
from orchestrator.storage.connect import open_storage
from orchestrator.study import Study
from reports.page.following import publish
from tests.launching import run_study
from tests.orchestrator.methods import scripted


def test_trials_of_another_program_are_shown_and_left_alone(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_study(scripted(study, "result"), out)
    other = optuna.load_study(
        study_name=study.name, storage=open_storage(f"sqlite:///{out}/study.db")
    )
    other.optimize(lambda trial: (trial.suggest_float("theirs", 2, 3), 0.0), n_trials=1)
    other.ask()
    run = run_study(scripted(study, "result", "result"), out)
    assert [trial.number for trial in run.finished] == [0, 3]
    assert {trial.number for trial in run.front} <= {0, 3}
    (remark,) = run.remarks
    assert remark == "trials of another program in the Optuna study are left alone: 1, 2"
    status = run_status(out)
    assert status.trials == {"finished": 2, "failed": 0, "running": 0, "waiting": 0}
    assert f"foreign    {remark}" in status.lines()
    publish(run)
    states = [trial.state for trial in other.get_trials(deepcopy=False)]
    assert states[1:3] == [TrialState.COMPLETE, TrialState.RUNNING]


def test_a_damaged_trial_is_on_no_front_and_is_trained_again(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = run_study(scripted(study, "result", "result"), out)
    (number,) = (trial.number for trial in run.front[:1])
    weights = RunFolder(out).model(number) / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))  # as a power cut leaves a file
    damaged = read_run(out)
    assert number not in [trial.number for trial in damaged.front]
    assert damaged.remarks[0].startswith(f"trial {number} is damaged and on no front (model/")
    again = run_study(scripted(study, "result", "result"), out)
    assert len(again.finished) == 2
    assert again.remarks == []
    (retry,) = (trial for trial in again.finished if RETRY_OF in trial.attributes)
    assert retry.attributes[RETRY_OF] == number
    assert retry.knobs == run.trials[number].knobs
    assert _values(again) == _values(run)
    assert len(load_optuna_study(out).trials) == 2


def _values(run: RunRecord) -> list[tuple[float, float]]:
    return sorted((trial.result.worth, trial.result.cost) for trial in run.finished)

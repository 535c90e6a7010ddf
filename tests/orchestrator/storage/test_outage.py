"""A server that is away for longer than calls are retried: the launch ends, no trial is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from maskfront import Study
from orchestrator.errors import RunError
from orchestrator.runs.records import FAILURE, RESULT, RETRY_OF, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage
from orchestrator.storage.retry import retried
from orchestrator.workers import loop
from tests.launching import run_study
from tests.orchestrator.methods import scripted

CutOff = Callable[[str, Callable[..., bool]], None]


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> CutOff:
    """Lets the next launch lose its storage in some calls of a name.

    The first of them is made, but its answer is lost, and then the server is away.
    """

    def cut(name: str, lost: Callable[..., bool]) -> None:
        def opened(url: str) -> BaseStorage:
            storage, made = open_storage(url), []
            call = getattr(storage, name)

            def unanswered(*arguments: Any, **named: Any) -> Any:
                if not lost(*arguments, *named.values()):
                    return call(*arguments, **named)
                if not made:
                    made.append(call(*arguments, **named))
                raise OperationalError("update", {}, Exception("no route to host"))

            setattr(storage, name, unanswered)
            return retried(storage, "shown", seconds=0.2)

        monkeypatch.setattr(loop, "open_storage", opened)

    return cut


def test_a_trial_that_was_told_before_the_server_went_away_keeps_its_files(
    study: Study, tmp_path: Path, cut_off: CutOff
) -> None:
    cut_off("set_trial_state_values", lambda _id, state, *_: state is TrialState.COMPLETE)
    with pytest.raises(RunError, match="storage shown does not answer"):
        run_study(scripted(study, "result"), tmp_path / "run")
    (trial,) = read_run(tmp_path / "run").trials
    assert trial.state == "finished"
    assert (RunFolder(tmp_path / "run").model(trial.number) / "model.safetensors").is_file()


def test_a_trial_that_cannot_be_told_ends_the_launch_and_is_tried_by_the_next(
    study: Study, tmp_path: Path, cut_off: CutOff, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off("set_trial_user_attr", lambda _id, key, _value: key in (RESULT, FAILURE))
    with pytest.raises(RunError, match="storage shown does not answer"):
        run_study(scripted(study, "result"), tmp_path / "run")
    monkeypatch.undo()
    run = run_study(scripted(study, "result"), tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["failed", "finished"]
    assert run.trials[1].knobs == run.trials[0].knobs
    assert run.trials[1].attributes[RETRY_OF] == 0


def test_a_database_deleted_under_a_launch_ends_it(study: Study, tmp_path: Path) -> None:
    """SQLite would write on into a file that no name leads to."""
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"run/study\.db' was deleted or replaced while this launch"):
        run_study(
            scripted(study, "result", "result", population=1),
            out,
            callbacks=[lambda _: (out / "study.db").unlink(missing_ok=True)],
        )

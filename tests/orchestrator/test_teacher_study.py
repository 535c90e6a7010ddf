"""A teacher that a study of its own tunes, before that of its students."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from maskfront import Beside, Study, Teacher
from objectives.cache import is_free
from objectives.errors import UserError
from objectives.session import Session
from objectives.students.bert import BERT
from objectives.workbench import teacher_trials
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import FINE_TUNING
from orchestrator import teacher_study
from orchestrator.dashboard.server import application
from orchestrator.errors import RunError
from orchestrator.runs.records import TUNED, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import storage_status
from orchestrator.storage.connect import read_storage
from reports.exporting.card import model_card
from tests.launching import run_study
from tests.orchestrator.methods import scripted

PLACES = ("learning_rate", "epochs", "batch_size", "warmup")


@pytest.fixture
def tuned(study: Study) -> Study:
    """The tiny study, whose one trial is quick, with a teacher that is tuned in four."""
    return replace(scripted(study, "result"), teacher=replace(study.teacher, trials=4))


class Killed(BaseException):
    """As SIGKILL: nothing that follows is done."""


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Teacher]:
    """Every fine-tuning of a trial; the third is killed."""
    found: list[Teacher] = []
    trained = teacher_trials.trained

    def counted(teacher: Teacher, *given: Any) -> Any:
        found.append(teacher)
        if len(found) == 3:
            raise Killed
        assert is_free(tmp_path / "run" / ".lock-prepare") is False, "others wait"
        return trained(teacher, *given)

    monkeypatch.setattr(teacher_trials, "trained", counted)
    return found


def shown(source: Path) -> set[str]:
    """The names of the studies that the dashboard of a source lists."""
    answer = b"".join(
        application(source)(
            {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/studies", "HTTP_HOST": "127.0.0.1:8080"},
            lambda status, headers, *_: None,
        )
    )
    return {one["study_name"] for one in json.loads(answer)["study_summaries"]}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tuning_that_was_killed_goes_on_and_all_readers_find_its_teacher(
    tuned: Study, trainings: list[Teacher], tmp_path: Path, elsewhere: bool
) -> None:
    place: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu"}
    url = RunFolder(tmp_path / "run").storage
    if elsewhere:
        url = place["storage"] = f"sqlite:///{tmp_path}/all.db"
    with pytest.raises(Killed):
        run_study(tuned, **place)
    run = run_study(tuned, **place)

    storage = read_storage(url)
    study = optuna.load_study(study_name="tiny-teacher", storage=storage)
    own = [getattr(tuned.teacher, name) for name in PLACES]
    assert [study.trials[0].params[name] for name in PLACES] == own
    ended = [trial for trial in study.trials if trial.state is not TrialState.FAIL]
    assert len(ended) == 4
    killed = study.trials[2]
    assert killed.state is TrialState.FAIL
    assert study.trials[3].params == killed.params, "and is tried again"
    best = study.best_trial
    again = best.number < 2  # its model is gone with the process
    assert len(trainings) == 2 + 1 + 2 + again
    assert best.value is not None
    assert best.value <= study.trials[0].intermediate_values[1]

    chosen = {**best.params, "selection loss": best.value, "trial": best.number}
    assert dict(run.tuned) == chosen == read_run(tmp_path / "run").tuned
    assert f"of trial {best.number} (learning_rate" in run.notes[0]
    card = model_card(run, run.finished[0], BERT, plain=False, notes=[])
    assert re.search(r"\| rows \| \d+ rows read; ", card)
    assert [trial.state for trial in run.trials] == ["finished"]
    assert run.definition["teacher.trials"] == "4"
    assert shown(tmp_path / "run") == {"tiny", "tiny-teacher"}
    assert storage_status(url, None).name == "tiny"

    inputs = read_inputs(tuned.task, tuned.teacher)
    session = Session(cache=tmp_path / "run" / "cache", seed=tuned.seed)
    assert inputs.answering(inputs.split("train"), session, fine_tune=False).bert is not None
    if elsewhere:
        return

    known = len(trainings)
    shutil.rmtree(tmp_path / "run" / "cache")
    more = run_study(replace(tuned, trials=2), **place)
    assert len(trainings) == known + 1, "the best one, made again"
    assert more.tuned == run.tuned
    assert more.unpruned == run.unpruned


def scripted_losses(monkeypatch: pytest.MonkeyPatch, *losses: list[float]) -> None:
    """Trials whose epochs have these losses, in place of trainings."""
    left = list(losses)

    def fine_tune(settings: object, report: teacher_trials.Report) -> tuple[list[float], float]:
        own = left.pop(0)
        for epoch, loss in enumerate(own, 1):
            report(epoch, loss)
        return own, own[-1]

    def tune(inputs: object, session: Session, choose: Callable[[Any], Any]) -> None:
        session.cache.joinpath("chosen").write_text(json.dumps(choose(fine_tune)))

    monkeypatch.setattr(teacher_study, "tune", tune)


def outer_of(study: Study, storage: str, **more: int) -> optuna.Study:
    optuna_study = optuna.create_study(
        storage=storage, study_name=study.name, directions=["maximize"] * 2
    )
    optuna_study.set_user_attr("definition", {"name": study.name, **more})
    return optuna_study


def tune_teacher(study: Study, optuna_study: optuna.Study, session: Session) -> None:
    """Without data: the settings are all there."""
    inputs: Any = SimpleNamespace(teacher=study.teacher)
    teacher_study.tune_teacher(study, optuna_study, inputs, session)


def test_bad_trainings_stop_early(
    tuned: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, worse, nan = [0.6, 0.5, 0.4], [0.7, 0.6, 0.5], [0.8, 0.9, 0.1], [float("nan")]
    scripted_losses(monkeypatch, bad, nan, good, bad, worse)
    study = replace(tuned, teacher=replace(tuned.teacher, trials=5))
    optuna_study, session = outer_of(study, f"sqlite:///{tmp_path}/a.db"), Session(cache=tmp_path)
    tune_teacher(study, optuna_study, session)
    assert json.loads((tmp_path / "chosen").read_text()) == good
    found = optuna.load_study(study_name="tiny-teacher", storage=f"sqlite:///{tmp_path}/a.db")
    pruned = [trial.number for trial in found.trials if trial.state is TrialState.PRUNED]
    assert pruned == [1, 4]
    assert max(found.trials[4].intermediate_values) == 2, "its third epoch never came"
    assert optuna_study.user_attrs[TUNED]["trial"] == 2


def test_no_finite_loss_and_another_study_of_the_name_are_refused(
    tuned: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = [float("nan")]
    scripted_losses(monkeypatch, nan, nan, nan, nan)
    url, session = f"sqlite:///{tmp_path}/a.db", Session(cache=tmp_path)
    optuna_study = outer_of(tuned, url)
    with pytest.raises(UserError, match=r"finite loss; lower Teacher.learning_rate, now 0.001"):
        tune_teacher(tuned, optuna_study, session)
    optuna.delete_study(study_name="tiny", storage=url)
    optuna_study = outer_of(tuned, url, seed=2)
    with pytest.raises(RunError, match="another study 'tiny-teacher'"):
        tune_teacher(tuned, optuna_study, session)
    for directions in (["minimize"], ["minimize", "minimize"]):
        other = replace(tuned, name=f"of{len(directions)}")
        theirs = optuna.create_study(
            storage=url, study_name=f"{other.name}-teacher", directions=directions
        )
        theirs.enqueue_trial({})
        optuna_study = outer_of(other, url)
        with pytest.raises(RunError, match=r"another study 'of\d-teacher'.*; give yours another"):
            tune_teacher(other, optuna_study, session)


def test_what_cannot_be_tuned_is_refused(
    tuned: Study, tiny_bert: str, tiny_classifier: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"Teacher.trials is -1; .* >= 0"):
        Teacher(checkpoint=tiny_bert, trials=-1)
    with pytest.raises(UserError, match=r"warmup is 1.0; it must be in"):
        Teacher(checkpoint=tiny_bert, warmup=1.0)
    for teacher in ({"answers": "said"}, {"ensemble": (tiny_bert, tiny_bert)}):
        with pytest.raises(
            UserError, match=r"Teacher.trials is 8; .* and 0 for an ensemble or for answers"
        ):
            Teacher(trials=8, **teacher)
    fine_tuned = replace(tuned, teacher=Teacher(checkpoint=str(tiny_classifier), trials=8))
    with pytest.raises(UserError, match="has a classifier and is not fine-tuned; leave trials out"):
        run_study(fine_tuned, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"Beside.teacher is .* one without trials"):
        Beside(task=tuned.task, teacher=tuned.teacher)
    inputs = read_inputs(tuned.task, tuned.teacher)
    with pytest.raises(UserError, match=r"does not hold the teacher.*launch the study again"):
        inputs.answering(inputs.split("train"), Session(cache=tmp_path))


def test_without_trials_nothing_that_is_kept_tells_of_them(tiny_bert: str) -> None:
    plain = Teacher(checkpoint=tiny_bert)
    assert tuple(plain.fine_tuning) == FINE_TUNING
    assert replace(plain, warmup=0.2, trials=2).fine_tuning == {
        **plain.fine_tuning,
        "warmup": 0.2,
        "trials": 2,
    }
    assert replace(plain, engine="bfloat16").fine_tuning == plain.fine_tuning

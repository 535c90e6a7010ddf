"""Models of a run that are distilled further: a run of their own, to which others can be added."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskfront import (
    CrossDistillation,
    FisherSearch,
    Run,
    RunError,
    Stage,
    StagedMethod,
    Study,
    Teacher,
    launch,
    load_run,
    polish,
)
from objectives.methods import polish as methods_polish
from objectives.methods.polish import inherited
from orchestrator.command.polishing import _loss
from orchestrator.runs.records import RunRecord
from orchestrator.study_file import load_study, load_study_of
from orchestrator.workers import claims
from orchestrator.workers.worker import Worker

QUIET = Console(quiet=True)


def polished(run: RunRecord, study: Study, *trials: int, **more: Any) -> Run:
    """Polish these, by default the front, for one epoch."""
    quick = {"epochs": 1, "device": "cpu", "console": QUIET, **more}
    return polish(run, study, trials=trials or None, **quick)


@pytest.fixture(scope="module")
def launched(tiny_study_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three trials."""
    study = replace(load_study(tiny_study_file), trials=3, population=1)
    out = tmp_path_factory.mktemp("launched") / "run"
    launch(study, out=out, device="cpu", report=False, console=QUIET)
    return out


@pytest.fixture
def run(launched: Path, tmp_path: Path) -> Run:
    """A copy of it, which a test may change."""
    return load_run(shutil.copytree(launched, tmp_path / "run"))


def test_the_front_goes_into_a_run_beside_it(run: Run, study: Study) -> None:
    before = run.dataframe()
    [*others] = sorted({trial.number for trial in run.finished} - {t.number for t in run.front})
    better = polished(run, study)
    assert better.folder == run.folder.with_name("run-polished")
    assert better.name == f"{study.name}-polished"
    assert (better.folder / "report.html").is_file()
    for file in run.folder.glob("cache/**/*[!.lock]"):
        lent = better.folder / file.relative_to(run.folder)
        assert file.is_dir() or lent.samefile(file), "the teacher is that of the run"
    parents = {trial.number: trial for trial in run.finished}
    assert [t.knobs["trial"] for t in better.trials] == [t.number for t in run.front]
    for trial in better.finished:
        assert trial.feasible
        assert trial.result.flops == parents[int(trial.knobs["trial"])].result.flops
    more = polished(run, study, *others)
    assert [t.number for t in more.trials] == list(range(3))
    assert {int(t.knobs["trial"]) for t in more.trials} == {0, 1, 2}
    assert load_run(run.folder).dataframe().equals(before), "the run itself does not change"


def test_a_trial_that_fails_is_replaced_by_none_and_tried_again_by_the_next_call(
    run: Run, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trials: Path, number: int) -> object:
        if number == 1:
            raise ZeroDivisionError("a bug")
        return inherited(trials, number)

    with monkeypatch.context() as broken:
        broken.setattr(methods_polish, "inherited", fail)
        once = polished(run, study, 0, 1, 2)
    assert sorted(trial.knobs["trial"] for trial in once.trials) == [0, 1, 2]
    assert sorted(trial.knobs["trial"] for trial in once.finished) == [0, 2]
    again = polished(run, study, 0, 1, 2)
    assert sorted(trial.knobs["trial"] for trial in again.finished) == [0, 1, 2]


def test_a_damaged_model_fails_its_own_trial_alone(run: Run, study: Study) -> None:
    (run.folder / "trials" / "00001" / "model" / "model.safetensors").write_bytes(b"half")
    better = polished(run, study, 0, 1, 2, population=3)
    assert [trial.knobs["trial"] for trial in better.finished] == [0, 2]
    (failed,) = (trial for trial in better.trials if trial.state == "failed")
    assert failed.knobs == {"trial": 1}
    assert failed.failure is not None
    assert "00001' has no trial's model to polish" in failed.failure
    flops = {trial.number: trial.result.flops for trial in run.finished}
    for trial in better.finished:
        assert trial.result.flops == flops[trial.knobs["trial"]]


def test_where_every_trial_fails_the_launch_says_why(
    run: Run, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trials: Path, number: int) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(methods_polish, "inherited", fail)
    with pytest.raises(RunError, match=r"1 trial.* failed.* ZeroDivisionError: a bug"):
        polished(run, study, 1)


def test_a_call_that_was_stopped_is_continued_whenever_that_was(
    run: Run, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def finished(*trials: int) -> list[int]:
        better = polished(run, study, *trials)
        return sorted(int(trial.knobs["trial"]) for trial in better.finished)

    for place in ((Worker, "_record_unpruned"), (claims, "draw")):
        with monkeypatch.context() as broken:
            broken.setattr(*place, stopped)
            with pytest.raises(KeyboardInterrupt):
                finished(0, 1)
    assert finished(2) == [2], "what had not begun is asked for no more"
    with monkeypatch.context() as broken:
        broken.setattr(methods_polish, "inherited", stopped)
        with pytest.raises(KeyboardInterrupt):
            finished(0)
    assert finished(2) == [0, 2], "what had begun is"


def test_limits_of_the_search_do_not_hold_for_named_models(run: Run, study: Study) -> None:
    short = replace(study, patience=1, trial_timeout=1e-3)
    assert len(polished(run, short, 2, 1, 0).finished) == 3


def test_models_that_cannot_be_polished_do_not_stop_the_others(run: Run, study: Study) -> None:
    for number in (0, 1):
        (run.folder / "trials" / f"{number:05d}" / "model" / "model.safetensors").unlink()
    better = polished(run, study, 0, 1, 2, population=1)
    assert [trial.knobs["trial"] for trial in better.finished] == [2]


def test_students_of_answers_alone_are_polished_by_these(study: Study, tmp_path: Path) -> None:
    stage = Stage(name="recover", epochs=0.1, loss="prediction")
    alone = replace(
        study,
        method=FisherSearch(tolerance=0.3, stages=(stage,)),
        space={"target_ratio": study.space["target_ratio"]},
        trials=1,
    )
    whole = launch(alone, out=tmp_path / "run", device="cpu", report=False, console=QUIET)
    assert (
        polished(whole, alone, 0, epochs=0.1).definition["method.stages.polish.loss"]
        == "prediction"
    )


@pytest.mark.parametrize("method", [FisherSearch(), CrossDistillation()])
def test_the_answers_of_a_teacher_are_learnt(method: StagedMethod, study: Study) -> None:
    several = Teacher(ensemble=(study.teacher.name, study.teacher.name))
    plain = replace(study, method=method, space={}, first=())
    assert _loss(plain) == "prediction+hidden"
    assert _loss(replace(plain, teacher=several)) == "prediction"


def test_a_run_is_polished_from_within_its_folder(
    run: Run, study: Study, tiny_study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.folder)
    better = polished(load_run("."), study, 0, epochs=0.1)
    assert better.folder == run.folder.with_name("run-polished")
    assert load_study_of(tiny_study_file, better.name).name == study.name


def test_more_training_elsewhere_is_another_study(run: Run, study: Study, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    polished(run, study, 0, out=out)
    with pytest.raises(RunError, match=r"method\.stages\.polish\.epochs"):
        polished(run, study, 0, epochs=2, out=out)
    other = replace(run, definition={**run.definition, "seed": "9"})
    with pytest.raises(RunError, match=r"method\.parent"):
        polished(other, study, 0, out=out)
    moved = replace(run, folder=run.folder.rename(tmp_path / "elsewhere"))
    assert len(polished(moved, study, 0, 1, out=out).finished) == 2


def test_what_cannot_be_polished_is_refused(run: Run, study: Study) -> None:
    refused: list[tuple[RunRecord, Study, tuple[int, ...], str]] = [
        (run, study, (7,), r"has no trial 7; finished: 0, 1, 2"),
        (run, replace(study, name="other"), (), "is a run of 'tiny', not of 'other'"),
        (replace(run, trials=()), study, (), "has no cut BERT in float32 with all word pieces on"),
        (
            run,
            replace(study, task=replace(study.task, train=100)),
            (),
            r"does not have the data of the run '.*' \(task\.data\)",
        ),
    ]
    for of, asked, trials, message in refused:
        with pytest.raises(RunError, match=message):
            polished(of, asked, *trials)
    for trial in run.trials:
        (run.folder / "trials" / f"{trial.number:05d}" / "architecture.json").write_text("{}")
    with pytest.raises(RunError, match="has no cut BERT in float32 with all word pieces on"):
        polished(run, study)
    with pytest.raises(
        RunError, match="trial 1 is no cut BERT in float32 with all word pieces, and only"
    ):
        polished(run, study, 1)
    assert not run.folder.with_name("run-polished").exists()

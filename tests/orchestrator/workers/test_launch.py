"""Launching a study: every trial is told, nothing is lost, a failure stays one trial's failure."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import optuna
import pytest
import torch
from optuna.artifacts import get_all_artifact_meta
from optuna.distributions import IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from maskfront import Study, launch, work
from objectives.errors import UserError
from objectives.measures import latency
from objectives.measures.cost import CostName, Flops
from objectives.methods.mask_search import MaskSearch
from objectives.methods.width_search import WidthSearch
from objectives.search_method import Outcome
from objectives.students.bert.architecture import BertArchitecture, BertShape
from objectives.text.augmentation import Augmentation
from objectives.training.stages import Stage
from objectives.workbench.workbench import Workbench
from orchestrator.dashboard.view import DashboardView, Source
from orchestrator.errors import RunError
from orchestrator.runs.answers import read_answers, read_rows
from orchestrator.runs.records import (
    BUDGET,
    DEVICE,
    POPULATION,
    PRECISION,
    RESULT,
    RETRY_OF,
    load_optuna_study,
    read_run,
)
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage, read_storage
from orchestrator.study_file import load_study
from orchestrator.workers import claims, worker
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.progress import LaunchProgress
from orchestrator.workers.worker_pool import launch_workers
from tests.conftest import graded_rows
from tests.launching import run_study
from tests.orchestrator.methods import Scripted, scripted
from tests.waiting import wait_for

WriteStudy = Callable[..., Path]


def states(folder: Path) -> list[str]:
    return [trial.state for trial in read_run(folder).trials]


@dataclass(frozen=True, kw_only=True)
class _Patient(Scripted):
    """Goes on with the next student when `wait` says so."""

    wait: ClassVar[Callable[[int], object]]

    @classmethod
    def search(cls, members: Sequence[Self], *args: Any, **kwargs: Any) -> Iterator[Outcome]:
        for outcome in super().search(members, *args, **kwargs):
            yield outcome
            cls.wait(outcome.slot)


def test_a_student_is_told_while_the_next_is_trained(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def wait(slot: int) -> None:
        wait_for("the trial before", lambda: states(tmp_path / "run")[slot] == "finished")
        waited.append(slot)

    monkeypatch.setattr(_Patient, "wait", wait, raising=False)
    patient = replace(scripted(study, "result", "result"), method=_Patient())
    assert len(run_study(patient, tmp_path / "run").finished) == 2
    assert waited == [0, 1]


def test_every_trial_leaves_a_model_that_scores_what_was_told(study: Study, tmp_path: Path) -> None:
    run = run_study(study, tmp_path / "run")

    assert [trial.state for trial in run.trials] == ["finished"] * 4
    for trial in run.trials:
        assert trial.result is not None
        folder = RunFolder(run.folder).model(trial.number)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert sum(p.numel() for p in model.parameters()) == trial.result.params
        assert torch.isfinite(model(**tokenizer("one word", return_tensors="pt")).logits).all()
        architecture = BertArchitecture.from_json((folder.parent / "architecture.json").read_text())
        assert architecture.heads_per_layer == trial.result.heads_per_layer
        assert json.loads((folder.parent / "result.json").read_text())["flops"] == (
            trial.result.flops
        )
        assert (folder.parent / "curve.csv").read_text().startswith("stage,step,loss")
    assert run.trials[0].knobs["target_ratio"] == 0.5
    assert run.unpruned.unit == "flops@16"
    assert "rows read" in run.notes[0]


@pytest.mark.slow
def test_each_trial_says_what_decided_its_last_digits(study: Study, tmp_path: Path) -> None:
    for precision, recorded in (("float32", "float32"), ("bfloat16", "bfloat16")):
        method = replace(study.method, precision=precision)  # type: ignore[call-arg]
        asked = replace(study, method=method, name=precision, trials=3, population=2)
        run = run_study(asked, tmp_path / precision)
        how = [[t.attributes[name] for name in (POPULATION, DEVICE, PRECISION)] for t in run.trials]
        assert how == [[2, "cpu", recorded], [2, "cpu", recorded], [1, "cpu", recorded]]


def test_a_population_that_goes_on_in_halves_says_how_many_trained_together_at_last(
    study: Study, tmp_path: Path
) -> None:
    ends = scripted(study, "memory", "memory", "memory", "memory", population=4)
    run = run_study(ends, tmp_path / "run")
    assert [trial.attributes[POPULATION] for trial in run.trials] == [2] * 4
    assert [PRECISION in trial.attributes for trial in run.trials] == [False] * 4, "it has none"


@pytest.mark.parametrize(
    "cost",
    ["flops", *(pytest.param(c, marks=pytest.mark.slow) for c in ("params", "units", "latency"))],
)
def test_a_study_minimises_what_it_counts(study: Study, tmp_path: Path, cost: CostName) -> None:
    study = replace(study, cost=cost, first=({"target_ratio": 0.6},))
    run = run_study(study, tmp_path / "run", trials=2)
    optuna_study = optuna.load_study(
        study_name="tiny", storage=open_storage(RunFolder(tmp_path / "run").storage)
    )
    unit = {
        "flops": "flops@16",
        "params": "params",
        "units": "units@heads+ffn",
        "latency": f"ms@cpu-{torch.get_num_threads()}threads-b1-s16",
    }[cost]
    assert optuna_study.metric_names == ["accuracy", unit]
    maximize, minimize = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    assert optuna_study.directions == [maximize, minimize]
    assert run.unpruned.unit == unit
    assert run.unpruned.ratio == 1
    assert run.definition["cost"] == cost
    shape = BertShape(layers=3, hidden=32, heads=4, head_dim=8, ffn=48, labels=3)
    for trial, record in zip(optuna_study.trials, run.trials, strict=True):
        result = record.result
        assert result is not None
        assert trial.values == [result.metric, result.cost]
        assert (result.unit, result.flops_unit) == (unit, "flops@16")
        assert trial.constraints == {"budget": pytest.approx(result.violation)}
        off = abs(result.cost / run.unpruned.cost - result.target_ratio)
        assert record.feasible == (off <= result.tolerance * result.target_ratio)
        folder = RunFolder(run.folder).model(record.number)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        architecture = BertArchitecture.from_json(folder.with_name("architecture.json").read_text())
        kept = sum(result.heads_per_layer) + sum(result.ffn_per_layer)
        counted = {
            "flops": Flops(shape, 16).exact(architecture),
            "params": sum(p.numel() for p in model.parameters()),
            "units": kept,
        }
        assert (result.flops, result.params) == (counted["flops"], counted["params"])
        assert result.cost == counted.get(cost, result.cost)
        assert isinstance(result.cost, float if cost == "latency" else int)
        assert 0 < result.cost < run.unpruned.cost or kept == 3 * 52


def test_a_resumed_study_takes_its_times_from_the_same_table(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(scripted(study, *["result"] * 4), cost="latency")
    first = run_study(study, tmp_path / "run", trials=1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        patched.setattr(latency, "_measure", refuse)
        run = run_study(study, tmp_path / "run", trials=2)
    assert run.unpruned == first.unpruned
    costs = {trial.result.cost for trial in run.trials if trial.result is not None}
    assert costs == {first.unpruned.cost}

    (table,) = (tmp_path / "run" / "cache").glob("latency-*.json")
    table.unlink()
    with pytest.raises(RunError, match=r"ratio 1 was .* ms@cpu-.*, but is now .* ms@cpu-"):
        run_study(study, tmp_path / "run", trials=3)
    assert states(tmp_path / "run") == ["finished"] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": MaskSearch(heads_kept=5)}, r"heads_kept is 5; the student has 4 a layer"),
        (
            {
                "method": MaskSearch(heads_by="softmax"),
                "space": {"heads_kept": IntDistribution(1, 6)},
                "first": (),
            },
            r"heads_kept is 6; the student has 4 a layer",
        ),
        (
            {"method": WidthSearch(shares=(0.9, 1)), "student_layers": (1,)},
            "all of them keep the same number of the 4 heads",
        ),
    ],
)
def test_a_method_that_does_not_go_with_the_student_is_refused_before_anything_is_written(
    study: Study, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_study(replace(study, **changes), tmp_path / "run")
    assert list(tmp_path.glob("run/**/*")) == []


def test_launching_again_goes_on_to_the_wanted_number(study: Study, tmp_path: Path) -> None:
    """Two at a time, the last of them alone; another population is the same study."""
    run_study(replace(study, population="auto"), tmp_path / "run", trials=2)
    run = run_study(study, tmp_path / "run", trials=5)
    assert len(run.trials) == 5
    knobs = [tuple(trial.knobs.values()) for trial in run.trials]
    assert len(set(knobs)) == 5
    assert run_study(study, tmp_path / "run", trials=5).trials == run.trials


@pytest.mark.parametrize(
    ("ends", "population", "failure"),
    [
        (("fail", "result", "result"), 2, "the loss is nan at step 3$"),
        (("result", "raise", "result"), 2, "ZeroDivisionError: a bug in the method$"),
        (("raise", "result", "result", "result"), 4, "ZeroDivisionError"),
        (("silent", "result", "result"), 2, "the method returned no outcome for it$"),
        # The likeliest class of nan is class 0, and Optuna keeps an infinite value (trap T6).
        (("nan", "result"), 2, "its accuracy is nan$"),
        (("too large", "result"), 1, "OutOfMemoryError: CUDA out of memory"),
        (
            ("result", "uncut", "result"),
            3,
            r"the model has [\d,]+ flops@\d+, but its architecture has [\d,]+;",
        ),
    ],
)
def test_a_trial_that_fails_says_why_and_costs_no_other(
    study: Study, tmp_path: Path, ends: tuple[str, ...], population: int, failure: str
) -> None:
    asked = scripted(study, *ends, population=population)
    run = run_study(asked, tmp_path / "run", trials=ends.count("result"))
    assert [t.state for t in run.trials] == [
        "finished" if end == "result" else "failed" for end in ends
    ]
    (failed,) = (trial for trial in run.trials if trial.failure is not None)
    assert re.match(failure, str(failed.failure))
    folders = sorted(path.name for path in (tmp_path / "run" / "trials").iterdir())
    assert folders == [f"{trial.number:05d}" for trial in run.finished]


def test_one_large_population_that_fails_in_part_is_no_reason_to_give_up(
    study: Study, tmp_path: Path
) -> None:
    ends = ["result", *["fail"] * 9]
    run = run_study(scripted(study, *ends, population=10), tmp_path / "run")
    assert len(run.finished) == 10


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError("database is locked"), SystemError("full")])
def test_what_fails_while_a_result_is_kept_is_tried_again(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is no fault of the knobs, nor of the other trials of the population."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    tried = scripted(study, *["result"] * 3, population=3)
    monkeypatch.setattr(worker, "write_trial", refuse)
    with pytest.raises(type(error), match=str(error)):
        run_study(tried, tmp_path / "run")
    assert states(tmp_path / "run") == ["failed"] * 3
    monkeypatch.undo()
    run = run_study(tried, tmp_path / "run")
    assert sorted(trial.knobs["tag"] for trial in run.finished) == [0, 1, 2]


def test_a_model_that_memory_does_not_hold_when_it_is_scored_is_tried_in_a_smaller_population(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, failed = Workbench.score, []

    def too_large(bench: Workbench, *arguments: Any) -> Any:
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return score(bench, *arguments)

    monkeypatch.setattr(Workbench, "score", too_large)
    run = run_study(scripted(study, "result", "result"), tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["finished", "finished"]


def test_a_trial_that_others_failed_while_it_was_written_ends_quietly(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = worker.write_trial

    def failed_meanwhile(folder: Path, *arguments: Any) -> list[Path]:
        optuna_study = load_optuna_study(tmp_path / "run")
        if folder.name == "00000":
            optuna_study.tell(0, state=optuna.trial.TrialState.FAIL)
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return write(folder, *arguments)

    monkeypatch.setattr(worker, "write_trial", failed_meanwhile)
    run = run_study(scripted(study, "result", "result"), tmp_path / "run", trials=2)
    assert [trial.state for trial in run.trials] == ["failed", "finished", "finished"]


def test_ctrl_c_before_a_population_is_searched_leaves_no_trial_running(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LaunchProgress, "population", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_study(scripted(study, "result", "result"), tmp_path / "run")
    assert [trial.failure for trial in read_run(tmp_path / "run").trials] == ["interrupted"] * 2


def test_a_trial_that_failed_leaves_no_weights(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in its folder nor as an artifact, which is a link to the same file."""

    def refuse(*_: object) -> None:
        raise RuntimeError("database is locked")

    folder = RunFolder(tmp_path / "run")
    monkeypatch.setattr(optuna.Trial, "set_constraint", refuse)
    with pytest.raises(RuntimeError, match="database is locked"):
        run_study(scripted(study, "result"), folder.path)
    assert get_all_artifact_meta(
        load_optuna_study(folder.path).trials[0], storage=load_optuna_study(folder.path)._storage
    )
    assert list(folder.artifacts.iterdir()) == []
    assert list(folder.trial(0).parent.iterdir()) == []
    storage = read_storage(folder.storage)
    view = DashboardView(lambda: {"": Source(storage, "tiny")})
    shown = view.get_all_trials(storage.get_study_id_from_name("tiny"))[0]
    assert get_all_artifact_meta(shown, storage=view) == []


def test_what_a_worker_left_that_was_killed_as_its_trial_failed_goes_at_the_next_launch(
    study: Study, tmp_path: Path
) -> None:
    tried = scripted(study, "result", "result")
    run_study(tried, tmp_path / "run", trials=1)
    folder = RunFolder(tmp_path / "run")
    optuna_study = optuna.load_study(study_name="tiny", storage=open_storage(folder.storage))
    optuna_study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL, user_attrs=claims.OWN))
    left = folder.trial(optuna_study.trials[-1].number)
    left.mkdir()
    (left / "result.json").touch()
    run_study(tried, tmp_path / "run", trials=2)
    assert not left.exists()


def test_first_knobs_that_are_added_later_are_tried(study: Study, tmp_path: Path) -> None:
    both = scripted(study, "result", "result")
    one = replace(both, first=both.first[:1], trials=1)
    run_study(one, tmp_path / "run")
    run = run_study(both, tmp_path / "run")
    assert [trial.knobs["tag"] for trial in run.trials] == [0, 1]


@pytest.mark.parametrize("number", [np.float32(1), torch.tensor(1.0)])
def test_numbers_of_numpy_and_torch_are_told_as_numbers(
    study: Study, tmp_path: Path, number: object
) -> None:
    """Trap T5: to Optuna an array is no result, and the trial fails with a warning alone."""
    method = Scripted(target_ratio=number, tolerance=number)  # type: ignore[arg-type]
    one = replace(scripted(study, "result"), method=method)
    trial = run_study(one, tmp_path / "run").trials[0]
    assert trial.state == "finished"
    assert trial.result is not None
    assert [type(n) for n in (trial.result.target_ratio, trial.result.tolerance)] == [float] * 2


def test_optuna_is_told_when_all_of_a_trial_is_there(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap T10: nothing can be added to a trial that was told."""
    tell, told = optuna.Study.tell, []

    def watched(
        optuna_study: optuna.Study, trial: optuna.Trial, values: Sequence[float]
    ) -> FrozenTrial:
        known = optuna_study.get_trials()[trial.number]
        names = {
            meta.filename for meta in get_all_artifact_meta(known, storage=optuna_study._storage)
        }
        assert names >= {"architecture.json", "result.json", "curve.csv", "model.safetensors"}
        assert (
            json.loads((folder.trial(trial.number) / "result.json").read_text())
            == (known.user_attrs[RESULT])
        )
        assert set(known.constraints) == {BUDGET}
        answer = tell(optuna_study, trial, values)
        with pytest.raises(UpdateFinishedTrialError):
            trial.set_user_attr("late", True)
        told.append(trial.number)
        return answer

    folder = RunFolder(tmp_path / "run")
    monkeypatch.setattr(optuna.Study, "tell", watched)
    run_study(scripted(study, "result", "result"), folder.path)
    assert told == [0, 1]


def test_a_study_whose_every_trial_fails_gives_up(study: Study, tmp_path: Path) -> None:
    hopeless = scripted(study, *["fail"] * 8)
    with pytest.raises(RunError, match="4 trials in a row failed; the last one with: the loss is"):
        run_study(hopeless, tmp_path / "run")
    assert states(tmp_path / "run")[:4] == ["failed"] * 4


def test_ctrl_c_fails_the_running_trials_and_keeps_the_finished(
    study: Study, tmp_path: Path
) -> None:
    interrupted = scripted(study, "result", "ctrl-c", "result", "result")
    with pytest.raises(KeyboardInterrupt):
        run_study(interrupted, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert [t.state for t in run.trials[:2]] == ["finished", "failed"]
    assert run.trials[1].failure == "interrupted"
    assert "running" not in [t.state for t in run.trials]


def test_the_knobs_of_an_interrupted_trial_are_tried_again_however_often(
    study: Study, tmp_path: Path
) -> None:
    """Three times and a fourth: only knobs with which workers died are dropped."""
    interrupted = scripted(study, "result", "ctrl-c", population=1)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            run_study(interrupted, tmp_path / "run")
    first, *others = read_run(tmp_path / "run").trials
    assert first.state == "finished"
    assert [trial.knobs for trial in others] == [{"end": "ctrl-c", "tag": 1}] * 4
    assert [trial.attributes.get(RETRY_OF) for trial in others] == [None, 1, 2, 3]


def test_a_full_disk_is_one_clear_error_and_loses_no_finished_trial(
    study: Study, tmp_path: Path
) -> None:
    full = scripted(study, "result", "disk")
    with pytest.raises(RunError, match=r"'trials/00001' could not be written \(No space left"):
        run_study(full, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert [t.state for t in run.trials] == ["finished", "failed"]
    assert sorted(p.name for p in (tmp_path / "run" / "trials").iterdir()) == ["00000"]
    waiting = load_optuna_study(tmp_path / "run").get_trials(states=[TrialState.WAITING])
    assert [trial.system_attrs["fixed_params"] for trial in waiting] == [run.trials[1].knobs]


@pytest.mark.slow
def test_a_population_that_memory_does_not_hold_goes_on_in_halves(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowded = scripted(study, "result", "memory", *["result"] * 4, population=4)
    run = run_study(crowded, tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["finished"] * 6
    shown = capsys.readouterr().out
    assert "out of memory with 4 trials at once: 3 trials start again, 2 at a time" in shown
    assert "trials 4 to 5" in shown, "the next population is no larger than fits"


def test_a_task_of_numbers_is_told_by_its_correlation(study: Study, tmp_path: Path) -> None:
    task = replace(study.task, data=graded_rows, metric="pearson_spearman")
    run = run_study(replace(scripted(study, "result"), task=task), tmp_path / "run", trials=1)
    (trial,) = run.trials
    assert trial.result is not None
    assert run.metric_name == "pearson_spearman"
    assert -1 <= trial.result.metric <= 1
    assert trial.result.metric == pytest.approx(run.unpruned.metric)
    answers = read_answers(run, trial.number)
    assert answers is not None
    judged = read_rows(run)
    assert judged is not None
    for role, logits in answers.items():
        np.testing.assert_allclose(logits, judged.unpruned[role], atol=1e-5)
    assert trial.result.params == run.unpruned.params


def test_knobs_that_the_method_refuses_fail_their_trial(study: Study, tmp_path: Path) -> None:
    """Either knob alone is good; together they are not, which no range can say."""
    stages = tuple(Stage(name=n, epochs=0.1, searches=True) for n in ("first", "search"))
    wrong = replace(
        study,
        method=replace(study.method, stages=stages),  # type: ignore[call-arg]
        space={
            "stages.search.keep": optuna.distributions.CategoricalDistribution(["best", "last"]),
            "stages.search.searches": optuna.distributions.CategoricalDistribution([True, False]),
        },
        first=(
            {"stages.search.keep": "best", "stages.search.searches": True},
            {"stages.search.keep": "last", "stages.search.searches": True},
        ),
    )
    run = run_study(wrong, tmp_path / "run", trials=1)
    assert str(run.trials[0].failure).startswith("stage 'search': keep='best' is only for stages")
    assert run.trials[1].state == "finished"


def test_another_study_in_the_folder_is_refused_and_the_difference_named(
    study: Study, tiny_bert: str, tmp_path: Path
) -> None:
    study = replace(study, trials=1, population=1)
    run_study(study, tmp_path / "run")
    narrow = replace(study.method, batch_size=8)  # type: ignore[call-arg]
    for changes, difference in (
        ({"method": narrow}, r"method\.batch_size was 16, is now 8\."),
        ({"student": tiny_bert}, r"student was None, is now \w{16}\."),
    ):
        with pytest.raises(RunError, match=f"another study: {difference}"):
            run_study(replace(study, **changes), tmp_path / "run")
    assert states(tmp_path / "run") == ["finished"]


def test_rows_and_weights_that_have_changed_are_named_in_words(
    study: Study, tiny_bert: str, tmp_path: Path
) -> None:
    study = scripted(replace(study, student=tiny_bert), "result", "result")
    run_study(study, tmp_path / "run", trials=1)
    model = AutoModel.from_pretrained(tiny_bert)
    torch.nn.init.zeros_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "other")
    other = replace(
        study,
        task=replace(study.task, train=100),
        teacher=replace(study.teacher, checkpoint=str(tmp_path / "other")),
        student=str(tmp_path / "other"),
    )
    with pytest.raises(RunError) as error:
        run_study(other, tmp_path / "run")
    assert (
        "another study: the student's checkpoint has changed (weights or config.json); the rows of "
        "the task or their roles (train, alpha, select, heldout) have changed; the teacher's "
        "checkpoint (weights, config.json or tokenizer) or its answers have changed, or another "
        "version of maskfront made the run. Choose another folder"
    ) in str(error.value)


def test_what_is_no_study_is_not_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = __file__
    monkeypatch.setitem(sys.modules, "__main__", script)

    def start_workers(study: Study, out: Path) -> None:
        launch_workers(study, LaunchOptions(out=out))

    for start in (launch, run_study, work, start_workers):
        with pytest.raises(RunError, match=r"takes a Study, not a str; .*load_study\('study"):
            start("study.py", out=tmp_path / "run")  # type: ignore[operator]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_study_with_augmented_text_runs_and_remembers_it(
    study: Study, tiny_masked_lm: str, tmp_path: Path
) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("tidal 1 0\ntides 1 1\n")
    augmentation = Augmentation(masked_lm=tiny_masked_lm, word_vectors=str(vectors), copies=2)
    study = replace(study, augmentation=augmentation, trials=2)
    run = run_study(study, tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["finished"] * 2
    (copies,) = RunFolder(run.folder).cache.glob("augmentation-*.jsonl")
    assert 128 < len(copies.read_text().splitlines()) <= 1 + 2 * 128

    moved = augmentation_of(study, masked_lm=str(copytree(tiny_masked_lm, tmp_path / "moved")))
    run_study(replace(moved, trials=3), tmp_path / "run")
    assert states(tmp_path / "run") == ["finished"] * 3

    for other, difference in (
        (augmentation_of(study, copies=3), r"augmentation\.copies was 2, is now 3\."),
        (
            augmentation_of(study, word_vectors=None),
            r"augmentation\.word_vectors was \w{16}, is now embeddings of the masked LM\.",
        ),
        (replace(study, augmentation=None), r"augmentation\.copies was 2, is now not set;"),
    ):
        with pytest.raises(RunError, match=difference):
            run_study(other, tmp_path / "run")


def test_augmentation_that_cannot_work_is_refused_before_anything_is_written(
    study: Study, tiny_bert: str, tiny_masked_lm: str, tmp_path: Path
) -> None:
    for augmentation, message in (
        (Augmentation(masked_lm=tiny_bert, copies=2), "no masked-LM head"),
        (
            Augmentation(masked_lm=tiny_masked_lm, word_vectors="nowhere.txt", copies=2),
            "word vectors 'nowhere.txt'",
        ),
    ):
        with pytest.raises(UserError, match=message):
            run_study(replace(study, augmentation=augmentation), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def augmentation_of(study: Study, **changes: object) -> Study:
    """The study with some fields of its augmentation replaced."""
    assert study.augmentation is not None
    return replace(study, augmentation=replace(study.augmentation, **changes))


def test_callbacks_see_the_run_after_each_population(study: Study, tmp_path: Path) -> None:
    seen: list[int] = []
    run_study(
        scripted(study, *["result"] * 4),
        tmp_path / "run",
        callbacks=[lambda run: seen.append(len(run.trials))],
    )
    assert seen == [2, 4]


@pytest.mark.slow
def test_kill_9_loses_no_finished_trial(write_study: WriteStudy, tmp_path: Path) -> None:
    """A launch in its own process is killed; the next one goes on to the wanted number."""
    path = write_study(epochs=6)
    folder = tmp_path / "run"
    command = [sys.executable, "-c", _LAUNCH, str(path), str(folder)]
    victim = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        wait_for(
            "a trial that is finished, and others that run",
            lambda: _count(folder, "COMPLETE") >= 1 and _count(folder, "RUNNING") > 0,
        )
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    before = [t for t in read_run(folder).trials if t.state == "finished"]
    assert before

    run = run_study(load_study(path), folder)

    finished = [t for t in run.trials if t.state == "finished"]
    assert len(finished) == 4
    assert finished[: len(before)] == before
    assert not [t for t in run.trials if t.state == "running"]
    assert {t.failure for t in run.trials if t.state == "failed"} == {
        "its process ended before the trial did"
    }
    on_disk = sorted(p.name for p in (folder / "trials").iterdir())
    assert on_disk == [f"{t.number:05d}" for t in finished]


@pytest.mark.slow
def test_a_launch_leaves_no_model_in_memory(tiny_study_file: Path, tmp_path: Path) -> None:
    """Optuna keeps the error of a package that it lacks, and with it all frames that led there."""
    code = """if True:
        import gc, sys
        from pathlib import Path
        from maskfront import launch
        from orchestrator.study_file import load_study
        launch(load_study(Path(sys.argv[1])), trials=1, out=sys.argv[2], device="cpu")
        gc.collect()
        print({type(thing).__name__ for thing in gc.get_objects()} & {"Worker", "Workbench"})
    """
    command = [sys.executable, "-c", code, str(tiny_study_file), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


_LAUNCH = """
import sys
from pathlib import Path
from orchestrator.study_file import load_study
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.loop import run_study
run_study(load_study(Path(sys.argv[1])), LaunchOptions(out=sys.argv[2], device="cpu"))
"""


def _count(folder: Path, state: str) -> int:
    try:
        connection = sqlite3.connect(f"file:{folder / 'study.db'}?mode=ro", uri=True)
        try:
            query = "SELECT count(*) FROM trials WHERE state = ?"
            return int(connection.execute(query, (state,)).fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error:
        return 0

"""Studies of several tasks: compared by the first, each with its own numbers and models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from optuna.distributions import FloatDistribution
from rich.console import Console
from transformers import BertTokenizer

from maskfront import (
    Beside,
    Cas,
    Enas,
    Mas,
    Run,
    RunError,
    Study,
    Task,
    Teacher,
    UserError,
    launch,
    load_run,
)
from objectives.delivery.exported import load_model
from orchestrator.study_file import load_study
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.worker_pool import launch_workers
from reports.speed import inputs_of
from tests.conftest import graded_rows
from tests.launching import run_study
from tests.reports.page.test_page import Page

QUIET = Console(quiet=True)
QUICK = {
    **{"width": 16, "nodes": 1, "operations": ("conv3", "max3"), "edges": 1, "batch_size": 16},
    **{"search_epochs": 0.2, "epochs": 0.2, "rewards": 2, "candidates": 2},
}
NUMBERS = ("grades pearson_spearman", "grades pearson_spearman held out")


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    """The tiny task, and beside it how much of what it asks for a text has."""
    plain = load_study(tiny_study_file)
    grades = Task(
        name="grades",
        data=graded_rows,
        metric="pearson_spearman",
        max_length=16,
        **{"train": 96, "alpha": 32, "select": 48, "heldout": 48},
    )
    return replace(
        plain,
        method=Cas(**QUICK),
        space={"orthogonality_weight": FloatDistribution(1e-4, 1e-1, log=True)},
        beside=(Beside(task=grades, teacher=plain.teacher),),
        first=(),
        trials=2,
        population=1,
    )


@pytest.fixture(scope="module")
def run(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(study, out=tmp_path_factory.mktemp("beside") / "run", console=QUIET)


def test_each_trial_tells_what_it_is_worth_on_each_task(run: Run) -> None:
    assert run.metric_name == "accuracy"
    assert set(run.unpruned.beside) == {*NUMBERS}
    for trial in run.finished:
        assert set(trial.result.beside) == {"forgotten", *NUMBERS}
        assert trial.result.beside.items() <= trial.attributes.items()
        (folder,) = (run.folder / "trials" / f"{trial.number:05d}" / "beside").iterdir()
        told = json.loads((folder / "result.json").read_text())
        assert [told["metric"], told["heldout_metric"]] == [
            trial.result.beside[name] for name in NUMBERS
        ]
    page = Page(run.folder / "report.html").documents["data"]
    (rows,) = page["runs"]
    assert all({"forgotten", *NUMBERS} <= set(row["attributes"]) for row in rows["trials"])


def test_an_export_holds_the_models_of_all_tasks(run: Run, tmp_path: Path) -> None:
    number = run.finished[0].number
    out = run.export(tmp_path / "out", trial=number).folder
    trial = run.folder / "trials" / f"{number:05d}"
    tokens = torch.arange(8).view(1, 8)
    for place, outputs in (("", 3), ("beside/grades", 1)):
        with torch.no_grad():
            own, again = (
                load_model(folder)(tokens).logits
                for folder in (trial / place / "model", out / place)
            )
        assert own.shape == (1, outputs)
        torch.testing.assert_close(again, own)
    card = (out / "README.md").read_text()
    assert all(name in card for name in (*NUMBERS, "forgotten", "teacher of grades"))


def test_it_goes_on_and_another_task_beside_is_another_study(run: Run, study: Study) -> None:
    launch(replace(study, trials=3), out=run.folder, console=QUIET)
    assert load_run(run.folder).finished[:2] == run.finished
    (other,) = study.beside
    for field, value in (("max_length", 12), ("data", lambda: graded_rows().select(range(300)))):
        changed = replace(other, task=replace(other.task, **{field: value}))
        with pytest.raises(RunError, match=r"run of another study: beside\.grades\."):
            launch(replace(study, beside=(changed,)), out=run.folder, console=QUIET)


def test_its_data_are_found_again(run: Run, study: Study) -> None:
    inputs = inputs_of(run, study)
    assert inputs.text.fingerprint == run.definition["task.data"]
    other = replace(study, task=replace(study.task, max_length=12))
    with pytest.raises(RunError, match="does not have the data of the run"):
        inputs_of(run, other)


@pytest.mark.slow
def test_two_workers_share_a_study_of_two_tasks(study: Study, tmp_path: Path) -> None:
    options = LaunchOptions(workers=2, trials=4, out=tmp_path / "run", device="cpu")
    both = launch_workers(
        replace(study, method=Mas(**QUICK), space={"learning_rate": FloatDistribution(1e-3, 3e-3)}),
        options,
        console=QUIET,
    )
    assert len(both.finished) == 4
    for trial in both.finished:
        assert set(trial.result.beside) == {*NUMBERS}


def test_what_cannot_work_is_refused(study: Study, tiny_bert: str, tmp_path: Path) -> None:
    (other,) = study.beside
    named = [replace(other, task=replace(other.task, name=name)) for name in ("a/b", "tiny")]
    for settings, message in (
        ({"method": Enas(**QUICK), "space": {}}, "names tasks, but Enas learns one"),
        ({"beside": ()}, r"Cas learns several tasks; name the others in Study\.beside"),
        ({"beside": (named[0],)}, "a task named 'a/b'; give each a name of its own"),
        ({"beside": (named[1],)}, "a task named 'tiny'"),
        ({"beside": (other, other)}, "a task named 'grades'"),
        ({"beside": (other.task,)}, r"Study\.beside .* each is Beside\(\.\.\.\)"),
    ):
        with pytest.raises(UserError, match=message):
            replace(study, **settings)
    folder = tmp_path / "words"
    shutil.copytree(tiny_bert, folder)
    vocabulary = BertTokenizer.from_pretrained(tiny_bert).get_vocab()
    turned = dict(zip(vocabulary, reversed(vocabulary.values()), strict=True))
    BertTokenizer(vocab=turned).save_pretrained(folder)
    foreign = replace(other, teacher=Teacher(checkpoint=str(folder)))
    with pytest.raises(UserError, match="does not read the tokens of the study's"):
        run_study(replace(study, beside=(foreign,)), tmp_path / "run")
    with pytest.raises(UserError, match=r"reads other tokens than the student .*; tasks together"):
        run_study(replace(study, student=str(folder)), tmp_path / "run")

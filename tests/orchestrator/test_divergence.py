"""A study of divergences from the teacher: from its launch to what people see."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.study import StudyDirection
from optuna_dashboard import get_note
from rich.console import Console

from maskfront import Run, RunError, Study, launch, load_run
from orchestrator.command.run import front_table
from orchestrator.runs.records import front_document, load_optuna_study
from orchestrator.status import run_status
from orchestrator.study_file import load_study
from reports.page.following import _trial_note
from tests.conftest import graded_rows
from tests.orchestrator.methods import scripted

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def by_divergence(tiny_study_file: Path) -> Study:
    return replace(load_study(tiny_study_file), objective="divergence", trials=3)


@pytest.fixture(scope="module")
def run(by_divergence: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two trials, then a third in a second launch."""
    out = tmp_path_factory.mktemp("runs") / "run"
    for trials in (2, 3):
        run = launch(by_divergence, trials=trials, out=out, device="cpu", console=QUIET)
    return run


def test_optuna_minimises_the_divergence(run: Run) -> None:
    optuna_study = load_optuna_study(run.folder)
    assert optuna_study.directions == [StudyDirection.MINIMIZE, StudyDirection.MINIMIZE]
    assert optuna_study.metric_names == ["divergence", "flops@16"]
    assert len(run.finished) == 3
    for trial, row in zip(optuna_study.get_trials(), run.finished, strict=True):
        assert trial.values == [row.result.divergence, row.result.cost]
        assert row.result.divergence > 0
        assert row.result.heldout_divergence > 0
        low, high = row.result.interval
        assert low <= row.result.metric <= high
    assert (run.unpruned.divergence, run.unpruned.heldout_divergence) == (0, 0)
    met = {row.number for row in run.finished if row.feasible}
    best = {trial.number for trial in optuna_study.best_trials}
    assert {row.number for row in run.front} == best & met != set()
    assert run.definition["objective"] == "divergence"


def test_everything_that_people_see_speaks_of_it(run: Run, tmp_path: Path) -> None:
    shown = run.front[0]
    own, heldout = (
        f"{value:.4g}" for value in (shown.result.divergence, shown.result.heldout_divergence)
    )
    assert "tiny: divergence against FLOPs" in str(run)
    for text in (str(run), run._repr_html_()):
        assert text.index("divergence held out") < text.index("accuracy") < text.index(own)
    narrow = io.StringIO()
    Console(file=narrow, width=60).print(front_table(run))
    assert "…" not in narrow.getvalue(), "a number less its last digits is another one"
    document = json.loads(json.dumps(front_document(run)))
    assert document["objective"] == "divergence"
    assert document["front"][0]["divergence"] == shown.result.divergence
    table = run.dataframe().set_index("number")
    assert table.loc[shown.number, "heldout_divergence"] == shown.result.heldout_divergence
    assert f"trial {shown.number}: divergence {own} at" in "\n".join(run_status(run.folder).lines())
    note = get_note(load_optuna_study(run.folder))
    assert "Objectives: divergence on the selection split (down)" in note
    assert f"divergence {own}, divergence held out {heldout}, accuracy" in _trial_note(run, shown)
    page = (run.folder / "report.html").read_text()
    assert "<h1>tiny: divergence against FLOPs</h1>" in page
    assert f'<td class="number">{heldout}</td>' in page
    card = (run.export(tmp_path / "model", trial=shown.number).folder / "README.md").read_text()
    assert f"| divergence held out | {heldout} | 0 |" in card


def test_one_folder_has_one_objective(by_divergence: Study, run: Run) -> None:
    with pytest.raises(RunError, match="study 'tiny' with other objectives than metric and cost"):
        launch(
            replace(by_divergence, objective="metric"), out=run.folder, device="cpu", console=QUIET
        )
    assert len(load_run(run.folder).trials) == 3


def test_numbers_diverge_by_their_squares(study: Study, tmp_path: Path) -> None:
    task = replace(study.task, data=graded_rows, metric="pearson_spearman")
    whole = replace(scripted(study, "result"), task=task, objective="divergence")
    run = launch(whole, out=tmp_path / "run", device="cpu", console=QUIET)
    (trial,) = run.finished
    assert trial.result.divergence == pytest.approx(0, abs=1e-9), "nothing is cut"
    assert trial.result.metric == pytest.approx(run.unpruned.metric)
    told = load_optuna_study(run.folder).get_trials()[0].values[0]
    assert told == trial.result.divergence

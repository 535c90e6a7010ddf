"""What a launch returns: numbers that agree with Optuna's own, choices, an export, a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution
from sklearn.metrics import f1_score

from maskfront import Run, RunError, Study, load_run
from orchestrator.runs.answers import read_answers, read_rows
from reports.recommended import recommended
from tests.launching import run_study
from tests.orchestrator.methods import scripted


@pytest.fixture
def run(study: Study, tmp_path: Path) -> Run:
    """Three trials: one that failed, one that met its budget, one that did not."""
    tried = scripted(study, "fail", "result", "result")
    space = {**tried.space, "target_ratio": FloatDistribution(0.2, 1)}
    ratios = (1.0, 1.0, 0.5)
    first = tuple({**k, "target_ratio": r} for k, r in zip(tried.first, ratios, strict=True))
    tried = replace(tried, space=space, first=first, trials=2, seed=1)
    run_study(tried, tmp_path / "run")
    return load_run(tmp_path / "run")


def test_the_dataframe_agrees_with_optuna(run: Run) -> None:
    frame = run.dataframe()
    study = optuna.load_study(study_name=run.name, storage=f"sqlite:///{run.folder}/study.db")
    theirs = study.trials_dataframe()
    pd.testing.assert_frame_equal(run.optuna_study.trials_dataframe(), theirs)
    states = frame["state"].map({"finished": "COMPLETE", "failed": "FAIL"})
    assert list(frame["number"]) == list(theirs["number"])
    assert list(states) == list(theirs["state"])
    for knob in run.space:
        pd.testing.assert_series_equal(frame[knob], theirs[f"params_{knob}"], check_names=False)
    for column, value in (("metric", "accuracy"), ("cost", "flops@16")):
        pd.testing.assert_series_equal(
            frame[column], theirs[f"values_{value}"], check_names=False, check_dtype=False
        )
    seconds = theirs["duration"].dt.total_seconds()
    np.testing.assert_allclose(frame["seconds"], seconds, atol=1e-6)


def test_the_dataframe_tells_the_front_and_who_met_the_budget(run: Run) -> None:
    frame = run.dataframe().set_index("number")
    assert list(frame["state"].value_counts()[["finished", "failed"]]) == [2, 1]
    assert list(frame.index[frame["front"]]) == [trial.number for trial in run.front] == [1]
    assert list(frame["feasible"]) == [False, True, False]
    first = run.finished[0].result
    assert frame.loc[1, ["heldout_metric", "ratio", "flops", "params"]].tolist() == [
        first.heldout_metric,
        first.ratio,
        first.flops,
        first.params,
    ]


def test_a_finished_run_is_judged_by_another_metric(run: Run) -> None:
    frame, judged = run.dataframe().set_index("number"), read_rows(run)
    assert judged is not None
    own = run.dataframe(metric=lambda labels, answers: np.mean(labels == answers))
    for anew in (run.dataframe(metric="accuracy"), own):
        pd.testing.assert_frame_equal(anew.set_index("number"), frame)
    f1 = run.dataframe(metric="macro_f1").set_index("number")
    answers = read_answers(run, 1)
    assert answers is not None
    expected = f1_score(judged.labels["heldout"], answers["heldout"].argmax(-1), average="macro")
    assert f1.loc[1, "heldout_metric"] == expected
    with pytest.raises(RunError, match="no metric 'f2'; choose accuracy, macro_f1, mcc, f1, or"):
        run.dataframe(metric="f2")  # type: ignore[arg-type]


def test_a_model_is_chosen_and_exported_in_one_way(run: Run, tmp_path: Path) -> None:
    assert run.best(max_ratio=1.0) == run.best(min_metric=0.0) == run.front[0]
    assert run.best() == recommended(run)
    with pytest.raises(RunError, match=r"accuracy >= 2 on its front; the nearest is trial 1"):
        run.best(min_metric=2)
    done = run.export(tmp_path / "model", max_ratio=1.0)
    config = json.loads((done.folder / "config.json").read_text())
    assert config["num_hidden_layers"] == 3
    with pytest.raises(RunError, match=r"is not an empty folder; choose another \(out=\.\.\.\)$"):
        run.export(tmp_path / "model", trial=1)


def test_a_notebook_shows_the_front_and_runs_nothing_of_a_name(run: Run) -> None:
    html = replace(run, name="<img src=x onerror=alert(1)>")._repr_html_()
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;: accuracy against FLOPs" in html
    (row,) = [row for row in html.split("<tr>") if row.startswith("<td>1</td>")]
    assert f"<td>{run.front[0].result.metric:.4f}</td>" in row
    assert html.count("<tr>") == 4, "columns, one model, the unpruned one, words alone"
    assert repr(run) == f"<Run 'tiny' in '{run.folder}': 2 trials finished, 1 on the front>"


def test_it_prints_as_its_front(run: Run) -> None:
    title, columns, models, unpruned, words = [
        line for line in str(replace(run, name="a\x1b[2Jb")).splitlines() if line[0] in " ┃│"
    ]
    assert title.strip() == "a\\x1b[2Jb: accuracy against FLOPs"
    assert columns.split()[1::2][:2] == ["trial", "accuracy"]
    assert f" {run.front[0].result.metric:.4f} " in models
    assert " unpruned " in unpruned
    assert run.words is not None
    cells = [cell.strip() for cell in words.split("│")[1:4]]
    numbers = [f"{value:.4f}" for value in (run.words.metric, run.words.heldout_metric)]
    assert cells == ["tf-idf", *numbers]


def test_a_report_is_written_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    assert run.report() == run.folder / "report.html"
    assert run.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")

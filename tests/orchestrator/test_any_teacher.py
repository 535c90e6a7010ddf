"""From teachers that are no BERT to folders that answer texts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from maskfront import (
    AdaBert,
    CellSearch,
    ElasticSearch,
    FisherSearch,
    MaskSearch,
    Stage,
    Study,
    Task,
    Teacher,
    export,
    launch,
)
from objectives.delivery.classify import Classifier
from objectives.errors import UserError
from objectives.search_method import SearchMethod
from objectives.training.stages import FOUR_STEPS
from orchestrator.errors import RunError
from reports.figures.cascades import cascades_of
from tests.any_classifiers import write_classifier
from tests.bert_variants import write_student
from tests.conftest import planted_rows

NAMES = ["happy", "neutral", "sad"]
CELLS = CellSearch(width=16, operations=("conv3",), epochs=12, batch_size=16, learning_rate=1e-2)
CUT = FisherSearch(stages=(Stage(name="recover", epochs=2, learning_rate=3e-3),), batch_size=16)
TEXTS = ["joy bab", "bel grief bel dab toast"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Cells and cuts of a BERT, where an LLM has answered a CSV of texts."""
    folder = tmp_path_factory.mktemp("answers")
    rows = planted_rows().to_pandas()
    right = rows["label"].map(NAMES.index).to_numpy()
    shares = np.full((len(rows), 3), 0.05) + 0.85 * np.eye(3)[right]
    rows["said"] = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in shares.tolist()]
    rows.to_csv(folder / "own.csv", index=False)
    return Study(
        name="answers",
        task=Task.from_files(
            folder / "own.csv", name="own", max_length=24, alpha=48, select=64, heldout=64
        ),
        teacher=Teacher(answers="said"),
        method={"cells": CELLS, "cut": CUT},
        space={
            "cells.operations[0]": CategoricalDistribution(("conv3", "none")),
            "cut.target_ratio": FloatDistribution(0.3, 1),
        },
        first=(
            {"method": "cells", "cells.operations[0]": "conv3"},
            {"method": "cut", "cut.target_ratio": 0.5},
        ),
        trials=2,
    )


@pytest.mark.slow
def test_an_llms_answers_make_students(study: Study, tiny_bert: str, tmp_path: Path) -> None:
    run = launch(replace(study, student=tiny_bert), out=tmp_path / "run")
    cells, cut = run.finished
    assert run.unpruned.metric == 1
    assert run.unpruned.label == "teacher"
    assert run.unpruned.ratio == 1
    assert run.sources["teacher answers"] == "said"
    assert any("the cost of the teacher is not known" in note for note in run.notes)
    assert cut.result.target_ratio == 0.5
    assert cells.result.metric > 0.6
    assert all(stage.number is not None for cascade in cascades_of(run) for stage in cascade.stages)
    page = (run.folder / "report.html").read_text()
    assert "teacher" in page
    for trial in (cells, cut):
        out = tmp_path / f"model-{trial.number}"
        export(run, trial.number, out, onnx=True)
        texts = json.dumps(TEXTS)
        code = f"from classify import Classifier; print(Classifier()({texts}))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=out, check=True, capture_output=True, text=True
        )
        assert done.stdout.count("Answer(label=") == 2
        card = (out / "README.md").read_text()
        assert "of the FLOPs of the unpruned student" in card
        assert "| teacher answers | said |" in card
    with pytest.raises(RunError, match="has its answers alone, so maskfront cannot serve it"):
        run.cascade(tmp_path / "cascade", replace(study, student=tiny_bert))


@pytest.mark.slow
def test_a_modernbert_is_fine_tuned_and_teaches_cells(study: Study, tmp_path: Path) -> None:
    teacher = Teacher(
        checkpoint=write_classifier("modernbert", tmp_path / "modern"),
        epochs=10,
        batch_size=16,
        learning_rate=3e-3,
    )
    alone = replace(
        study,
        teacher=teacher,
        method=CELLS,
        space={"operations[0]": CategoricalDistribution(("conv3", "none"))},
        first=({"operations[0]": "conv3"},),
        trials=1,
    )
    run = launch(alone, out=tmp_path / "run")
    (trial,) = run.finished
    assert run.unpruned.ratio == 1
    assert trial.result.ratio == trial.result.flops / run.unpruned.flops < 1
    assert run.unpruned.metric > 0.45
    assert trial.result.metric > 0.6
    export(run, 0, tmp_path / "model", onnx=True)
    answers = Classifier(tmp_path / "model")(TEXTS)
    assert {answer.label for answer in answers} <= set(NAMES)
    assert launch(replace(alone, trials=1), out=tmp_path / "run").finished == run.finished


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (FisherSearch(), "learns from the inside of the teacher, but 'said' has its answers alone"),
        (MaskSearch(stages=FOUR_STEPS), "learns from the inside of the teacher"),
        (ElasticSearch(), "learns from the inside of the teacher"),
        (AdaBert(), "learns from the inside of the teacher"),
        (CellSearch(hidden_weight=1), "learns from the inside of the teacher"),
        (CellSearch(noised=1), "learns from the inside of the teacher"),
    ],
)
def test_a_method_that_needs_a_bert_s_inside_is_refused_before_anything_is_written(
    method: SearchMethod, message: str, study: Study, tiny_bert: str, tmp_path: Path
) -> None:
    student = write_student(tiny_bert, tmp_path / "student")
    own = replace(study, student=student, method=method, space={}, first=({},), trials=1)
    with pytest.raises(UserError, match=message) as raised:
        launch(own, out=tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_milliseconds_beside_no_bert_are_refused_before_anything_is_written(
    study: Study, tmp_path: Path
) -> None:
    albert = Teacher(checkpoint=write_classifier("albert", tmp_path / "albert", NAMES))
    cells = replace(study, method=CellSearch(), space={}, first=({},), trials=1)
    timed = replace(cells, teacher=albert, cost="latency")
    with pytest.raises(UserError, match="is 'latency', which is counted beside a BERT"):
        launch(timed, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_bert_there_is_nothing_to_cut(study: Study, tmp_path: Path) -> None:
    teacher = Teacher(checkpoint=write_classifier("albert", tmp_path / "albert", NAMES))
    with pytest.raises(UserError, match=r"it cuts a BERT, but .* is no BERT \('albert'"):
        launch(replace(study, teacher=teacher), out=tmp_path / "run")

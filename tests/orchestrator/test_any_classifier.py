"""From a user's own file and model to a cut model that transformers serves, whatever its kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from maskfront import Study
from objectives.errors import UserError
from objectives.text.task import Task
from objectives.workbench.teacher import Teacher
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study_file import load_study
from tests.bert_variants import write_variant
from tests.conftest import MARKERS, planted_rows
from tests.launching import run_study
from tests.orchestrator.conftest import WriteStudy

LABELS = sorted(MARKERS.values(), reverse=True)  # not the order that the task has


@pytest.fixture
def study(write_study: WriteStudy, tmp_path: Path) -> Study:
    """The tiny study on a file with semicolons."""
    planted_rows().to_csv(tmp_path / "own.csv", sep=";", index=False)
    sizes = {"max_length": 16, "train": 128, "alpha": 48, "select": 64, "heldout": 64}
    task = Task.from_files(tmp_path / "own.csv", name="own", delimiter=";", **sizes)
    return replace(load_study(write_study()), task=task, trials=2)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        pytest.param("electra", None, marks=pytest.mark.slow),
        pytest.param("roberta", LABELS, marks=pytest.mark.slow),
        pytest.param("distilbert", LABELS, marks=pytest.mark.slow),
        ("mpnet", None),
    ],
)
def test_any_kind_of_teacher_is_searched_cut_and_served(
    study: Study, tmp_path: Path, kind: str, labels: list[str] | None
) -> None:
    checkpoint = write_variant(kind, tmp_path / kind, labels)
    run = run_study(replace(study, teacher=Teacher(checkpoint=checkpoint)), tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["finished"] * 2
    folder = RunFolder(run.folder).model(0)
    serve = pipeline("text-classification", model=str(folder), tokenizer=str(folder))
    said = serve(["joy bab", "bel grief bel dab toast"], batch_size=2)
    assert {answer["label"] for answer in said} <= set(LABELS)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)("joy bab", return_tensors="pt")
    assert said[0]["score"] == pytest.approx(model(**tokens).logits.softmax(-1).max().item())


def test_a_teacher_of_other_labels_is_refused_at_once(study: Study, tmp_path: Path) -> None:
    checkpoint = write_variant("roberta", tmp_path / "roberta", ["good", "bad", "neutral"])
    with pytest.raises(UserError, match=r"does not know the label\(s\) happy, sad of the task; it"):
        run_study(replace(study, teacher=Teacher(checkpoint=checkpoint)), tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""Data that is named: a folder, a path where nothing is, a data set of the hub, a task of GLUE."""

import os
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from objectives.errors import UserError
from objectives.text.glue import glue
from objectives.text.roles import load_text
from objectives.text.task import ROLES
from tests.glue_shaped import write_glue
from tests.objectives.text.toy import task_of, texts_of


@pytest.mark.parametrize(
    "name",
    [
        "./nowhere",
        "../nowhere",
        "~/nowhere",
        "/nowhere",
        "a/b/c",
        "rows/",
        "my rows",
        "C:\\rows",
        "nope.txt",
        "rows/train.CSV",
        "train.csv.gz",
    ],
)
def test_a_path_where_nothing_is_is_refused_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("objectives.text.reading.load_dataset", asked)
    monkeypatch.chdir(tmp_path)
    place = "" if name.startswith("/") else f" in {tmp_path}"
    message = f"task 'toy': there is no file or folder '{name}'{place}; correct data, or name a"
    with pytest.raises(UserError, match=re.escape(message)) as error:
        load_text(task_of(name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["imdb", "nyu-mll/glue", "a.b/c_d-1.0"])
def test_a_name_of_a_data_set_is_asked_of_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("objectives.text.reading.load_dataset", asked)
    message = rf"'{name}' could not be loaded \(there is no such folder, and from the hub: no"
    with pytest.raises(UserError, match=message):
        load_text(task_of(name))


def test_a_file_for_data_is_told_where_files_go(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,0\n")
    with pytest.raises(
        UserError, match=r"train\.csv' is a file; .* by Task\.from_files\('/.*csv',"
    ):
        load_text(task_of(str(tmp_path / "train.csv")))


NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli-mm", "qnli", "rte", "wnli")
REAL = Path(os.environ.get("MASKFRONT_GLUE", Path(__file__).parents[4] / "shared" / "glue"))


@pytest.fixture(scope="module")
def tiny_glue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 rows of train and 12 of each validation split, in all nine configurations."""
    return write_glue(tmp_path_factory.mktemp("glue"), train=40, validation=12)


@pytest.mark.parametrize("name", NAMES)
def test_every_task_is_read_from_a_folder_of_its_shape(name: str, tiny_glue: str) -> None:
    task = glue(name, tiny_glue, alpha=6, select=8)
    text = load_text(task)
    sizes = {role: len(rows) for role, rows in texts_of(text).items()}
    assert sizes == {"train": 26, "alpha": 6, "select": 8, "heldout": 12}
    assert all(len(row) == len(task.columns) for row in text.roles["train"].texts)
    assert task.regression == (text.label_names == ["label"]) == (name == "stsb")


def test_mnli_holds_out_the_matched_or_the_mismatched_sentences(tiny_glue: str) -> None:
    matched, mismatched = (
        texts_of(load_text(glue(name, tiny_glue, alpha=6, select=8)))
        for name in ("mnli", "mnli-mm")
    )
    assert not set(matched["heldout"]) & set(mismatched["heldout"])
    assert matched["train"] == mismatched["train"]


def test_rows_of_qqp_without_a_second_question_are_left_out(tmp_path: Path) -> None:
    folder = write_glue(tmp_path, train=40, validation=12, only=["qqp"])
    (file,) = tmp_path.glob("qqp/train*")
    rows = pandas.read_parquet(file)
    rows.loc[7, "question2"] = ""
    rows.to_parquet(file)
    text = load_text(glue("qqp", folder, alpha=6, select=8))
    assert sum(map(len, texts_of(text).values())) == 39 + 12


def test_the_metrics_are_those_of_the_benchmark() -> None:
    metrics = {name: glue(name).metric for name in NAMES}
    assert metrics.pop("cola") == "mcc"
    assert metrics.pop("stsb") == "pearson_spearman"
    assert metrics.pop("mrpc") == metrics.pop("qqp") == "f1"
    assert set(metrics.values()) == {"accuracy"}


def test_any_field_of_the_task_may_be_changed() -> None:
    task = glue("rte", max_length=64, train=500)
    assert (task.max_length, task.train, task.data) == (64, 500, "nyu-mll/glue")


@pytest.mark.parametrize("name", ["sst-3", "", "ax"])
def test_a_task_that_there_is_not_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match=rf"^no GLUE task '{name}'; there are {', '.join(NAMES)}$"):
        glue(name)


def test_a_folder_without_the_task_is_refused(tmp_path: Path) -> None:
    folder = write_glue(tmp_path, train=40, validation=12, only=["rte"])
    with pytest.raises(UserError, match=r"task 'cola': data set .* could not be loaded .*cola"):
        load_text(glue("cola", folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "heldout", "labels"),
    [
        # Of 8,551, 2,490 and 67,349 sentences some stand twice, and 16 of cola in both splits.
        ("cola", 8532 - 16, 1043, ["unacceptable", "acceptable"]),
        ("rte", 2488, 277, ["entailment", "not_entailment"]),
        ("sst2", 66978, 872, ["negative", "positive"]),
    ],
)
def test_the_real_task(name: str, train: int, heldout: int, labels: list[str]) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"NOT TESTED: GLUE itself; no {name} in {REAL} (MASKFRONT_GLUE names a folder)")
    task = glue(name, str(REAL))
    text = load_text(task)
    texts = texts_of(text)
    assert list(text.label_names) == labels
    assert len(texts["heldout"]) == heldout
    assert (len(texts["alpha"]), len(texts["select"])) == (task.alpha, task.select)
    others = {row for role in ROLES if role != "heldout" for row in texts[role]}
    assert len(others) == sum(len(texts[role]) for role in ROLES if role != "heldout") == train
    assert not others & set(texts["heldout"])

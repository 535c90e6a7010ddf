"""Data that is named: a folder, a path where nothing is, a data set of the hub."""

import re
from pathlib import Path
from typing import Any

import pytest

from objectives.errors import UserError
from objectives.text.roles import load_text
from objectives.text.task import Task


def task_of(data: str) -> Task:
    return Task(name="toy", data=data)


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

    monkeypatch.setattr("objectives.text.roles.load_dataset", asked)
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

    monkeypatch.setattr("objectives.text.roles.load_dataset", asked)
    message = rf"'{name}' could not be loaded \(there is no such folder, and from the hub: no"
    with pytest.raises(UserError, match=message):
        load_text(task_of(name))


def test_a_file_for_data_is_told_where_files_go(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,0\n")
    with pytest.raises(
        UserError, match=r"train\.csv' is a file; .* by Task\.from_files\('/.*csv',"
    ):
        load_text(task_of(str(tmp_path / "train.csv")))


def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,0\n")
    test = tmp_path / "test.csv"
    test.write_text('text,label\n"unclosed,1\nmore')
    with pytest.raises(
        UserError, match=r"could not be loaded \(file .*test\.csv.: a quote in line 2"
    ):
        load_text(task_of(str(tmp_path)))
    test.write_text("text,label,extra\na,1,1\n")
    with pytest.raises(
        UserError, match=r"its files differ in their columns: .* \(\{'extra'\}\)\)$"
    ):
        load_text(task_of(str(tmp_path)))


def test_files_of_one_split_that_differ_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train-1.csv").write_text("text,label\na,no\n")
    (tmp_path / "train-2.csv").write_text("text,label,extra\na,no,1\n")
    with pytest.raises(UserError, match=r"\(Schema at index 1 was different: .* extra: ") as error:
        load_text(task_of(str(tmp_path)))
    assert "\n" not in str(error.value)

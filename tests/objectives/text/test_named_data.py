"""Data that is named: a folder, a path where nothing is, a data set of the hub."""

import re
from pathlib import Path
from typing import Any

import pytest

from objectives.errors import UserError
from objectives.text.roles import load_text
from tests.objectives.text.toy import task_of


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

"""A text that swallowed rows of its CSV is told of; one of several lines is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from objectives.text.odd import odd_texts
from objectives.text.roles import load
from objectives.text.task import Task

ROWS = [f"text {row},{('no', 'yes')[row % 2]}" for row in range(60)]


def notes(path: Path, rows: list[str], header: str = "text,label", **fields: Any) -> list[str]:
    path.write_text("\n".join([header, *rows]) + "\n")
    sizes = {"alpha": 6, "select": 8, "heldout": 10}
    task = Task.from_files(path, name="toy", **{**sizes, **fields})
    return list(odd_texts(task, load(task)))


@pytest.mark.parametrize("last", [6, 25])
def test_rows_between_two_stray_quotes_are_noticed(tmp_path: Path, last: int) -> None:
    rows = [*ROWS]
    rows[5], rows[last] = '"one,yes', '"two,no'
    (line,) = notes(tmp_path / "own.csv", rows)
    assert line.startswith("1 text holds what looks like rows of the CSV ('one,yes\\n")
    assert line.endswith("closes? Put that field in quotes and write the quote twice")
    more = [f"{row},{line},x" for row, line in enumerate(rows)]
    more[5], more[last] = '5,"one,yes,x', f'{last},"two,no,x'
    assert len(notes(tmp_path / "own.csv", more, "id,text,label,more")) == 1


def test_rows_that_a_text_of_the_heldout_file_swallowed_are_noticed(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text('text,label\na,no\n"b,yes\nc,no\n"d,no\n')
    (line,) = notes(tmp_path / "own.csv", ROWS, heldout_file=other)
    assert "('b,yes\\nc,no\\nd')" in line


def test_texts_of_several_lines_are_not_odd(tmp_path: Path) -> None:
    lines = ['"Dear all,\nno, thanks\nyes, please\nno,more\na,b,no\n",no', '"1,2\nno\nyes",yes']
    assert notes(tmp_path / "own.csv", [*ROWS, *lines]) == []
    assert (
        notes(tmp_path / "own.tsv", [row.replace(",", "\t") for row in ROWS], "text\tlabel") == []
    )
    numbers = [f'"text {row},1\n2,3\n",{row}' for row in range(60)]
    assert notes(tmp_path / "own.csv", numbers, metric="pearson_spearman") == []


def test_a_column_that_pandas_named_is_passed_over(tmp_path: Path) -> None:
    rows = [f"a,{row}" for row in ROWS]
    assert notes(tmp_path / "own.csv", rows, "text,text,label", text="text.1") == []

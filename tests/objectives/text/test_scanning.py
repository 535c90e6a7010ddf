"""Rows as they are read: which texts are equal, and what is no text or label at all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from objectives.errors import UserError
from objectives.text.roles import load_text
from objectives.text.task import Task
from tests.objectives.text.toy import (
    COUNT,
    ROWS,
    SIZES,
    dataset,
    labels_of,
    numbered,
    task_of,
    texts_of,
)

WHITE = (" ", "  ", "\n", "\t ", "\r\n", "\u00a0", "\u2003 ", "\x0b", "\u2028")


@given(
    st.lists(
        st.tuples(st.integers(0, 59), st.lists(st.sampled_from(WHITE), min_size=3, max_size=3)),
        max_size=40,
    )
)
def test_texts_that_differ_in_blanks_and_line_ends_alone_are_equal(
    again: list[tuple[int, list[str]]],
) -> None:
    once = numbered().to_dict()
    more = [f"{one}text{two}{row}{three}" for row, (one, two, three) in again]

    def spaced() -> Dataset:
        labels = once["label"] + [once["label"][row] for row, _ in again]
        return Dataset.from_dict({"text": once["text"] + more, "label": labels})

    assert load_text(task_of(spaced)).fingerprint == load_text(task_of(numbered)).fingerprint


def test_a_heldout_text_with_other_blanks_stands_in_no_other_role() -> None:
    def both() -> DatasetDict:
        test = {"text": [" text  0", "text 1\n", "text 99"], "label": ["no", "yes", "yes"]}
        return DatasetDict({"train": numbered(), "test": Dataset.from_dict(test)})

    texts = texts_of(load_text(task_of(both, heldout_split="test")))
    assert texts["heldout"] == [(" text  0",), ("text 1\n",), ("text 99",)]
    assert {len(texts[role]) for role in ("train", "alpha", "select")} == {COUNT - 2 - 14, 6, 8}


def test_of_a_pair_the_blanks_between_the_texts_count() -> None:
    def pairs() -> Dataset:
        rows = [(f"a {row}", "b") for row in range(COUNT)] + [("a", f"{row} b") for row in range(9)]
        return Dataset.from_dict(
            {
                "one": [one for one, _ in rows],
                "two": [two for _, two in rows],
                "label": ["no", "yes", "yes"] * 23,
            }
        )

    texts = texts_of(load_text(task_of(pairs, text=("one", "two"))))
    assert sum(map(len, texts.values())) == COUNT + 9


def in_json_lines(path: Path, rows: list[tuple[Any, Any]]) -> Task:
    """The task of a file of these texts and labels."""
    path.write_text("".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in rows))
    return Task.from_files(path, name="toy", **SIZES)


def in_parquet(path: Path, texts: list[Any]) -> Task:
    pandas.DataFrame({"text": texts, "label": numbered()["label"]}).to_parquet(path)
    return Task.from_files(path, name="toy", **SIZES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["bab", "dab"], r"has a list in column 'text', .*; join its tokens into one text$"),
        ({"en": "bab"}, r"has a mapping in column 'text', .*; make a column of the text in it$"),
    ],
)
def test_a_text_that_is_a_list_or_a_mapping_is_refused_by_its_row(
    tmp_path: Path, text: Any, message: str
) -> None:
    own = tmp_path / "own.jsonl"
    for texts, row in (
        ([text] * COUNT, 1),
        ([None] * 5 + [text] * 55, 6),
        (["a word"] * 5 + [text] + ["a word"] * 54, 6),
    ):
        task = in_json_lines(own, list(zip(texts, numbered()["label"], strict=True)))
        with pytest.raises(UserError, match=f"task 'toy': row {row} of split 'train' {message}"):
            load_text(task)
    with pytest.raises(UserError, match=f"row 1 of split 'train' {message}"):
        load_text(in_parquet(tmp_path / "own.parquet", [text] * COUNT))


def test_one_label_among_others_that_is_a_list_is_refused(tmp_path: Path) -> None:
    task = in_json_lines(tmp_path / "own.jsonl", [*ROWS[:7], ("a", ["no"]), *ROWS[7:]])
    with pytest.raises(
        UserError, match=r"row 8 .* has a list in column 'label', .* one label; for several"
    ):
        load_text(task)


def test_texts_and_labels_that_are_numbers_are_texts_beside_words_and_alone(tmp_path: Path) -> None:
    numbers: list[tuple[Any, Any]] = [(row, row % 2) for row in range(COUNT)]
    mixed = [(row if row % 3 else f"text {row}", label or "no") for row, label in numbers]
    for rows in (numbers, mixed):
        text = load_text(in_json_lines(tmp_path / "own.jsonl", rows))
        assert labels_of(text) == {str(row): str(label) for row, label in rows}


BLANKS = ("", " ", "\t\n ", "\u00a0")


@pytest.mark.parametrize("column", ["text", "label"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_blanks_are_missing_in_every_kind_of_file(tmp_path: Path, kind: str, column: str) -> None:
    frame = pandas.DataFrame(numbered().to_dict())
    gaps = pandas.DataFrame([{"text": f"gap {row}", "label": "no"} for row in range(len(BLANKS))])
    both = pandas.concat([frame[:5], gaps.assign(**{column: BLANKS}), frame[5:]])
    own = tmp_path / f"own.{kind}"
    if kind == "jsonl":
        own.write_text("".join(json.dumps(row) + "\n" for row in both.to_dict("records")))
    else:
        getattr(both, f"to_{kind}")(own, index=False)
    task = Task.from_files(own, name="toy", **SIZES)
    with pytest.raises(
        UserError,
        match=f"4 rows lack a {column} in column '{column}' of split 'train', the first is row 6; "
        "fill them in, or set drop_missing=True",
    ):
        load_text(task)
    whole = load_text(replace(task, drop_missing=True))
    assert whole.fingerprint == load_text(task_of(numbered)).fingerprint


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        pytest.param(
            numbered().add_column("other", ["  ", *["bab"] * 59]),
            {"text": ("text", "other")},
            r"1 row lacks a text in column 'other' .* is row 1;",
            id="a text of a pair",
        ),
        pytest.param(
            numbered([" ", *map(str, range(59))]),
            {"metric": "pearson_spearman"},
            r"1 row lacks a label in column 'label' .* is row 1;",
            id="a number",
        ),
        pytest.param(
            dataset([(" ", "no")] * 9),
            {"drop_missing": True},
            r"'train' has no rows with a text and a label$",
            id="every row",
        ),
    ],
)
def test_what_is_blank_is_missing(rows: Dataset, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_text(task_of(lambda: rows, **fields))


@pytest.mark.parametrize(("column", "what"), [("text", "a text"), ("label", "a label")])
def test_nan_is_missing(column: str, what: str) -> None:
    """Text of numbers, numbers to learn: as pandas writes what a file of its own lacks."""

    def graded() -> Dataset:
        rows = {"text": [n + 0.5 for n in range(60)], "label": [n / 3 for n in range(60)]}
        rows[column][3] = float("nan")
        return Dataset.from_dict(rows)

    task = task_of(graded, metric="pearson_spearman")
    with pytest.raises(UserError, match=rf"1 row lacks {what} in column '{column}' .* is row 4;"):
        load_text(task)
    whole = load_text(replace(task, drop_missing=True))
    assert sum(len(role.labels) for role in whole.roles.values()) == 59

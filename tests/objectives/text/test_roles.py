"""What is said of the rows that were read: how many are left out, and why."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.errors import UserError
from objectives.text.roles import load_text
from objectives.text.task import Task
from tests.objectives.text import toy
from tests.objectives.text.toy import ROWS, SIZES, dataset

Rows = list[tuple[Any, Any]]
MORE: Rows = [(f"more {row}", None) for row in range(7)]


def task_of(
    rows: Rows, heldout: Rows | None = None, more: Rows | None = None, **fields: Any
) -> Task:
    """The task of these rows, of a split that is held out and of one that nobody labelled."""
    splits = {"train": rows, "test": heldout, "more": more}
    data = DatasetDict({name: dataset(own) for name, own in splits.items() if own is not None})
    if heldout is not None:
        fields["heldout_split"] = "test"
    if more is not None:
        fields["unlabelled_split"] = "more"
    return toy.task_of(lambda: data, **fields)


def test_rows_that_are_all_used_are_counted_by_role() -> None:
    read = "60 rows read; train 36, alpha 6, selection 8, held out 10"
    assert load_text(task_of(ROWS)).read == read


def test_rows_that_are_left_out_are_counted_by_reason() -> None:
    again = [(f" {text}", label) for text, label in ROWS[:3]]
    other = [(text, "maybe") for text, _ in ROWS[3:5]]
    assert load_text(
        task_of([*ROWS, *again, *other, ("", "no"), ("a", None)], train=20, drop_missing=True)
    ).read == (
        "67 rows read; left out: 2 without a text or a label, 5 of equal text (2 of these with "
        "another label than the first), 16 more than the 20 to train on; "
        "train 20, alpha 6, selection 8, held out 10"
    )


def test_a_split_that_is_held_out_is_counted_by_itself() -> None:
    heldout = [*ROWS[:5], *ROWS[:2], (" ", "no")]
    assert load_text(task_of([*ROWS, ROWS[7]], heldout, drop_missing=True)).read == (
        "split 'train': 61 rows read; left out: 1 of equal text, 5 whose text is held out; "
        "train 41, alpha 6, selection 8; "
        "split 'test': 8 rows read; left out: 1 without a text or a label; held out 7"
    )


def test_a_label_written_in_another_way_is_no_other_label() -> None:
    rows = [(text, str(row % 2)) for row, (text, _) in enumerate(ROWS)]
    rows += [("text 0", "0.0"), ("text 1", "1."), ("text 2", "1.0")]
    assert "3 of equal text (1 of these with another label" in load_text(task_of(rows)).read


def test_numbers_of_equal_texts_are_compared_too() -> None:
    rows = [(text, row / 7) for row, (text, _) in enumerate(ROWS)]
    rows += [("text 0", 0.0), ("text 1", 9.0)]
    read = load_text(task_of(rows, metric="pearson_spearman")).read
    assert "2 of equal text (1 of these with another label" in read


@given(st.lists(st.tuples(st.integers(0, 59), st.sampled_from(["no", "yes"])), max_size=40))
def test_whatever_stands_twice_is_counted_as_by_hand(again: list[tuple[int, str]]) -> None:
    read = load_text(task_of([*ROWS, *((ROWS[row][0], label) for row, label in again)])).read
    others = sum(label != ROWS[row][1] for row, label in again)
    among = f" ({others} of these with another label than the first)" if others else ""
    out = f"; left out: {len(again)} of equal text{among}" if again else ""
    count = 60 + len(again)
    assert read == f"{count} rows read{out}; train 36, alpha 6, selection 8, held out 10"


def test_one_label_that_is_left_after_equal_texts_is_told_from_one_that_there_is() -> None:
    rows = [(text, label) for text, _ in ROWS for label in ("a", "b")]
    message = (
        r"^task 'toy': the rows that are left have one label only in column 'label': a \(120 rows "
        r"read; left out: 60 of equal text \(60 of these with another label than the first\)\); "
        "give equal texts one label$"
    )
    with pytest.raises(UserError, match=message):
        load_text(task_of(rows))
    with pytest.raises(UserError, match=r"column 'label' has one label only: a$"):
        load_text(task_of([row for row in rows if row[1] == "a"] * 2))


def test_one_label_that_is_left_beside_a_heldout_split_is_told_so() -> None:
    heldout = [row for row in ROWS if row[1] == "yes"]
    with pytest.raises(
        UserError,
        match=r"left have one label only .*: no \(60 rows read; left out: 30 whose text is held "
        r"out\); add rows of other labels$",
    ):
        load_text(task_of(ROWS, heldout))


def test_text_without_labels_stands_in_no_role_and_is_counted_by_itself() -> None:
    known = [(f"  {ROWS[0][0]} ", "no"), (ROWS[-1][0], "other")]
    text = load_text(task_of(ROWS, ROWS[3:5], [*MORE, *known, MORE[0], (" ", None)]))
    assert text.unlabelled == [(words,) for words, _ in MORE]
    assert text.read.endswith(
        "split 'more': 11 rows read; left out: 1 without a text, 3 of equal text; unlabelled 7"
    )
    assert {role: len(rows.texts) for role, rows in text.roles.items()} == {
        "heldout": 2,
        "select": 8,
        "alpha": 6,
        "train": 44,
    }


def test_a_text_that_is_held_out_is_no_unlabelled_one() -> None:
    heldout: Rows = [("held out", "yes"), *ROWS[:1]]
    assert load_text(task_of(ROWS, heldout, [*MORE, ("held out", None)])).unlabelled == [
        (words,) for words, _ in MORE
    ]


def test_rows_beyond_train_may_be_the_text_without_labels() -> None:
    text = load_text(task_of(ROWS, train=20, unlabelled_split="train"))
    assert text.read == ("60 rows read; train 20, alpha 6, selection 8, held out 10; unlabelled 16")
    whole = {row for rows in text.roles.values() for row in rows.texts} | set(text.unlabelled)
    assert whole == {(words,) for words, _ in ROWS}
    assert text.roles["train"].texts == load_text(task_of(ROWS, train=20)).roles["train"].texts
    fewer = load_text(task_of(ROWS, train=20, unlabelled_split="train", unlabelled=5))
    assert fewer.read.endswith("unlabelled 5")
    assert len(set(fewer.unlabelled) & set(text.unlabelled)) == 5


def test_the_file_of_the_rows_may_be_that_of_the_text_without_labels(tmp_path: Path) -> None:
    """What stands in no role: rows beyond train, and those that nobody labelled."""
    file, other = tmp_path / "own.csv", tmp_path / "other.csv"
    lines = [f"{text},{label}\n" for text, label in ROWS]
    file.write_text("text,label\n" + "".join(lines), encoding="utf-8")
    other.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    spelt = tmp_path / "nowhere" / ".." / "own.csv"
    same, copied = (
        Task.from_files(file, unlabelled_file=more, name="toy", train=20, **SIZES)
        for more in (spelt, other)
    )
    assert same == Task.from_files(file, unlabelled_split="train", name="toy", train=20, **SIZES)
    text = load_text(same)
    assert text.read == "60 rows read; train 20, alpha 6, selection 8, held out 10; unlabelled 16"
    in_roles = {row for rows in text.roles.values() for row in rows.texts}
    assert in_roles | set(text.unlabelled) == {(words,) for words, _ in ROWS}
    assert len(in_roles) + len(text.unlabelled) == len(ROWS)
    assert load_text(copied).fingerprint == text.fingerprint

    file.write_text("text,label\n" + "".join(lines) + "nobody's,\ntext 7,\n", encoding="utf-8")
    half = load_text(replace(same, drop_missing=True))
    assert {role: rows.texts for role, rows in half.roles.items()} == {
        role: rows.texts for role, rows in text.roles.items()
    }
    assert half.unlabelled == [*text.unlabelled, ("nobody's",)]
    assert half.read == (
        "62 rows read; left out: 2 without a text or a label; train 20, alpha 6, selection 8, "
        "held out 10; unlabelled 17 (1 of these without a label)"
    )
    alone = load_text(replace(same, train=None, drop_missing=True))
    assert (len(alone.roles["train"].texts), alone.unlabelled) == (36, [("nobody's",)])


def test_text_without_labels_is_part_of_the_fingerprint() -> None:
    prints = [
        load_text(task).fingerprint
        for task in (
            task_of(ROWS),
            task_of(ROWS, more=MORE),
            task_of(ROWS, more=MORE[1:]),
            task_of(ROWS, more=MORE),
        )
    ]
    assert len(set(prints)) == 3
    assert prints[1] == prints[3]


@pytest.mark.parametrize(
    "task", [task_of(ROWS, more=ROWS[:9]), task_of(ROWS, train=36, unlabelled_split="train")]
)
def test_no_text_beside_the_roles_is_refused(task: Task) -> None:
    wanted = f"unlabelled_split '{task.unlabelled_split}' has only texts that"
    with pytest.raises(UserError, match=wanted):
        load_text(task)


def test_without_labels_roles_are_drawn_from_text_alone(tmp_path: Path) -> None:
    """A text a line; blank lines and equal ones are left out, and nothing is stratified."""
    file = tmp_path / "texts.txt"
    lines = [text for text, _ in ROWS]
    file.write_text("\n".join([*lines[:20], "", "  ", *lines[20:], lines[3]]), encoding="utf-8")
    found = load_text(Task.from_files(file, name="toy", metric="agreement", **SIZES))
    assert found.read == (
        "63 rows read; left out: 2 without a text, 1 of equal text; "
        "train 36, alpha 6, selection 8, held out 10"
    )
    texts = [text for rows in found.roles.values() for (text,) in rows.texts]
    assert sorted(texts) == sorted(lines)
    assert {label for rows in found.roles.values() for label in rows.labels.tolist()} == {-1}
    assert not found.label_names


def test_a_label_column_is_not_read_where_no_label_is() -> None:
    rows = [(text, None) for text, _ in ROWS]
    assert load_text(task_of(rows, metric="agreement")).read.startswith("60 rows read; train 36")


def test_too_few_rows_without_labels_are_refused() -> None:
    with pytest.raises(UserError, match=r"cannot take 50 rows for 'select' out of 50: heldout="):
        load_text(task_of(ROWS, metric="agreement", select=50))


@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(0, 50),
    st.sampled_from([None, 20]),
)
def test_train_keeps_every_class_and_each_part_what_is_asked_of_it(
    rare: list[int], seed: int, train: int | None
) -> None:
    counts = [40, 30, *rare]
    rows = [(f"{label} {row}", label) for label, own in enumerate(counts) for row in range(own)]
    sizes = {"alpha": 15, "select": 15}
    if train is not None:
        sizes["train"] = train
    text = load_text(task_of(rows, seed=seed, **sizes))
    assert set(text.roles["train"].labels) == set(range(len(counts)))
    everyone = [row for own in text.roles.values() for row in own.texts]
    assert len(everyone) == len(set(everyone))
    for role, size in sizes.items():
        assert len(text.roles[role].texts) == size
        assert set(text.roles[role].labels) >= {0, 1}


def test_heldout_labels_that_nothing_learns_are_refused_in_one_line() -> None:
    heldout = [("a", "yes"), ("b", "never"), ("c", "never"), ("d", "no")]
    wanted = (
        "task 'toy': 2 rows of the held-out split 'test' have labels that no train row has "
        "('never'); correct them, leave these rows out, or add train rows"
    )
    with pytest.raises(UserError) as raised:
        load_text(task_of(ROWS, heldout))
    assert str(raised.value) == wanted

"""A task's rows in four disjoint roles, its tokens and metrics, and what a user gets wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given
from hypothesis import strategies as st

from objectives.errors import UserError
from objectives.pretrained import load_tokenizer
from objectives.task import ROLES, Examples, LabelledText, Task, load, metric_value, tokenise
from tests.conftest import planted_rows

ROWS = 60


def numbered(labels: Sequence[Any] = ("no", "yes"), rows: int = ROWS) -> Dataset:
    """Distinct texts; the labels take turns."""
    return Dataset.from_dict(
        {
            "text": [f"text {row}" for row in range(rows)],
            "label": [labels[row % len(labels)] for row in range(rows)],
        }
    )


def classed(labels: Sequence[int | None]) -> Dataset:
    """The same with a label column that knows its names, "no" and "yes"."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    return Dataset.from_dict(numbered(labels).to_dict(), features=features)


def task_of(data: str | Callable[[], Any], **fields: Any) -> Task:
    sizes = {"alpha": 6, "select": 8, "heldout": 10}
    return Task(name="toy", data=data, **{**sizes, **fields})


def texts_of(text: LabelledText) -> dict[str, list[tuple[str, ...]]]:
    return {role: list(text.roles[role].texts) for role in ROLES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A local data set of two splits; five rows of test stand in train as well."""
    numbered().to_csv(tmp_path / "train.csv", index=False)
    test = numbered(rows=ROWS + 20).select([*range(5), *range(ROWS, ROWS + 20)])
    test.to_csv(tmp_path / "test.csv", index=False)
    return tmp_path


def test_roles_have_their_sizes_and_share_no_text() -> None:
    texts = texts_of(load(task_of(numbered)))
    assert {role: len(rows) for role, rows in texts.items()} == {
        "train": ROWS - 24,
        "alpha": 6,
        "select": 8,
        "heldout": 10,
    }
    assert set().union(*map(set, texts.values())) == {(f"text {row}",) for row in range(ROWS)}


@given(st.integers(0, 100), st.integers(2, 12), st.integers(2, 12), st.integers(2, 12))
def test_roles_are_disjoint_and_stratified_whatever_their_sizes(
    seed: int, alpha: int, select: int, heldout: int
) -> None:
    text = load(
        task_of(lambda: numbered("ab"), seed=seed, alpha=alpha, select=select, heldout=heldout)
    )
    everyone = [row for rows in texts_of(text).values() for row in rows]
    assert len(everyone) == len(set(everyone)) == ROWS
    for examples in text.roles.values():
        counts = np.bincount(examples.labels, minlength=2)
        assert abs(int(counts[0] - counts[1])) <= 2


def test_the_seed_decides_the_roles() -> None:
    task = task_of(numbered)
    assert texts_of(load(task)) == texts_of(load(task))
    assert texts_of(load(task)) != texts_of(load(replace(task, seed=1)))


def test_every_text_keeps_its_label() -> None:
    text = load(task_of(numbered))
    assert text.label_names == ["no", "yes"]
    for examples in text.roles.values():
        for (row,), label in zip(examples.texts, examples.labels, strict=True):
            assert label == int(row.removeprefix("text ")) % 2


def test_of_rows_of_equal_text_the_first_is_kept() -> None:
    def doubled() -> Dataset:
        once = numbered().to_dict()
        return Dataset.from_dict(
            {"text": once["text"] * 2, "label": once["label"] + ["yes"] * ROWS}
        )

    assert texts_of(load(task_of(doubled))) == texts_of(load(task_of(numbered)))
    assert load(task_of(doubled)).fingerprint == load(task_of(numbered)).fingerprint


def test_train_takes_as_many_rows_as_it_is_asked_to() -> None:
    all_that_is_left = ROWS - 24
    for train in (20, all_that_is_left):
        texts = texts_of(load(task_of(numbered, train=train)))
        assert len(texts["train"]) == train


def test_a_fingerprint_changes_with_a_text_a_label_and_a_role() -> None:
    others = [
        task_of(numbered, seed=1),
        task_of(lambda: numbered(("yes", "no"))),
        task_of(lambda: numbered(("no", "yea"))),
        task_of(lambda: numbered(rows=ROWS + 2)),
    ]
    prints = [load(task).fingerprint for task in (task_of(numbered), *others)]
    assert len(set(prints)) == len(prints)


def test_a_local_folder_gives_the_rows_of_its_csv(folder: Path) -> None:
    assert texts_of(load(task_of(str(folder)))) == texts_of(load(task_of(numbered)))


def test_a_local_folder_gives_the_rows_of_its_parquet(tmp_path: Path) -> None:
    numbered().to_parquet(tmp_path / "train.parquet")
    assert texts_of(load(task_of(str(tmp_path)))) == texts_of(load(task_of(numbered)))


def test_a_heldout_split_is_taken_whole_and_its_texts_leave_the_others(folder: Path) -> None:
    texts = texts_of(load(task_of(str(folder), heldout_split="test")))
    assert len(texts["heldout"]) == 25
    assert sum(map(len, texts.values())) == ROWS + 20
    others = {row for role in ROLES if role != "heldout" for row in texts[role]}
    assert not others & set(texts["heldout"])


def test_nothing_is_written_beside_the_users_data(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    load(task_of(str(folder)))
    assert sorted(folder.rglob("*")) == before


def test_pairs_of_sentences_are_distinct_as_pairs(tiny_bert: str) -> None:
    def pairs() -> Dataset:
        rows = numbered()
        return rows.rename_column("text", "second").add_column("first", ["bab"] * ROWS)

    text = load(task_of(pairs, text=("first", "second")))
    assert ("bab", "text 0") in {row for rows in texts_of(text).values() for row in rows}
    pair = Examples([("bab bel", "dab")], np.array([0]))
    split = tokenise(pair, "train", load_tokenizer(tiny_bert), 16, [0, 1])
    assert split.token_type_ids == [[0, 0, 0, 0, 1, 1]]  # [CLS] bab bel [SEP] dab [SEP]


def test_tokens_end_at_the_longest_length_and_labels_take_the_teachers_order(
    tiny_bert: str,
) -> None:
    examples = Examples([("bab " * 30,), ("joy",)], np.array([0, 2]))
    split = tokenise(examples, "alpha", load_tokenizer(tiny_bert), 12, [2, 0, 1])
    assert (split.role, split.max_length) == ("alpha", 12)
    assert [len(ids) for ids in split.input_ids] == [12, 3]
    assert split.labels.tolist() == [2, 1]


def test_metrics_agree_with_hand_arithmetic() -> None:
    truth, said = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    assert metric_value("accuracy", truth, said) == 6 / 8
    # 2 true positives, 4 true negatives, 1 false positive, 1 false negative
    assert metric_value("f1", truth, said) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metric_value("mcc", truth, said) == pytest.approx(
        (2 * 4 - 1 * 1) / (3 * 3 * 5 * 5) ** 0.5
    )
    three, guess = np.array([0, 1, 2, 2]), np.array([0, 1, 2, 1])
    assert metric_value("f1", three, guess) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_the_planted_task_has_its_words_in_every_role(planted_task: Task) -> None:
    text = load(planted_task)
    assert Counter(text.label_names) == Counter(set(planted_rows()["label"]))
    for examples in text.roles.values():
        assert set(examples.labels.tolist()) == {0, 1, 2}


USER_ERRORS = {
    "unknown data set": (task_of("nobody/nothing"), "data set 'nobody/nothing' could not be load"),
    "no such folder": (task_of("./nowhere"), r"data set './nowhere' could not be loaded"),
    "no Dataset": (task_of(lambda: [1]), r"data\(\) returned list, not datasets.Dataset"),
    "missing text column": (
        task_of(numbered, text="sentence"),
        "no column 'sentence'; there are text, label",
    ),
    "missing second text column": (task_of(numbered, text=("text", "other")), "no column 'other'"),
    "missing label column": (
        task_of(numbered, label="sentiment"),
        "no column 'sentiment'; there are text, label",
    ),
    "missing held-out split": (
        task_of(numbered, heldout_split="test"),
        "no split 'test'; there are train",
    ),
    "unlabelled row": (task_of(lambda: numbered(("a", "b", None))), "has rows without a label"),
    "unlabelled -1 row": (
        task_of(lambda: classed((0, 1, -1))),
        r"column 'label' has -1, which is none of its labels \(no, yes\)",
    ),
    "unlabelled rows of both kinds": (task_of(lambda: classed((0, 1, -1, None))), "label"),
    "one label": (task_of(lambda: numbered("a")), r"has one label only: \['a'\]"),
    "too few rows for a role": (
        task_of(numbered, heldout=100),
        "cannot take 100 stratified rows for 'heldout' out of 60",
    ),
    "a role of no rows": (
        task_of(numbered, select=0),
        "cannot take 0 stratified rows for 'select'",
    ),
    "too few rows for train": (
        task_of(numbered, train=37),
        "train=37, but only 36 rows are left after the other roles",
    ),
    "a label too rare": (
        task_of(lambda: numbered(("a", "b") * 29 + ("a", "c"))),
        "cannot take 10 stratified rows for 'heldout'",
    ),
}


@pytest.mark.parametrize("case", USER_ERRORS)
def test_what_a_user_gets_wrong_is_one_clear_line(case: str) -> None:
    task, message = USER_ERRORS[case]
    with pytest.raises(UserError, match=message) as error:
        load(task)
    assert str(error.value).startswith("task 'toy': ")
    assert "\n" not in str(error.value)


def test_a_missing_split_of_a_folder_is_named_with_those_there_are(folder: Path) -> None:
    with pytest.raises(UserError, match="no split 'validation'; there are train, test"):
        load(task_of(str(folder), split="validation"))


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be loaded"):
        load(task_of(str(tmp_path)))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text,label\n"unclosed,1\nmore')
    with pytest.raises(UserError, match="could not be loaded"):
        load(task_of(str(tmp_path)))


def test_a_metric_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="no metric 'auc'; there are accuracy, mcc, f1"):
        task_of(numbered, metric="auc")


def test_a_function_that_raises_is_named_with_its_reason() -> None:
    def broken() -> Dataset:
        raise FileNotFoundError("tweets.csv")

    with pytest.raises(UserError, match=r"data\(\) raises FileNotFoundError: tweets\.csv"):
        load(task_of(broken))


def test_rows_without_a_text_are_refused() -> None:
    def gappy() -> Dataset:
        return Dataset.from_dict({"text": ["a", None] * 30, "label": ["x", "y"] * 30})

    with pytest.raises(UserError, match="column 'text' has rows without a text"):
        load(task_of(gappy))

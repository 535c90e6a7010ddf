"""What words alone give: fitted once, on the words of each column, and told where it matters."""

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from objectives.measures.bootstrap import Worth
from objectives.metric import Labels
from objectives.session import Session
from objectives.text.data import Split
from objectives.text.roles import load_text
from objectives.text.task import Examples, LabelledText, Task
from objectives.workbench import words
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher, words_note
from objectives.workbench.words import answers_of_words, worth_of_words
from objectives.workbench.workbench import Workbench, prepare
from tests.conftest import MARKERS, graded_rows, planted_rows


def worth(task: Task, cache: Path, text: LabelledText | None = None) -> Worth:
    text = text or load_text(task)
    return worth_of_words(task, text, answers_of_words(task, text, Session(cache=cache)))


def test_words_that_decide_the_label_are_found(planted_task: Task, tmp_path: Path) -> None:
    found = worth(planted_task, tmp_path)
    assert min(found.metric, found.heldout_metric) > 0.9
    assert found.interval[0] <= found.metric <= found.interval[1]


def test_numbers_are_found_by_their_words(planted_task: Task, tmp_path: Path) -> None:
    graded = replace(planted_task, data=graded_rows, metric="pearson_spearman")
    found = worth(graded, tmp_path)
    assert min(found.metric, found.heldout_metric) > 0.8


def test_the_words_of_a_pair_are_told_apart_by_column(planted_task: Task, tmp_path: Path) -> None:
    """All pairs have the same two markers: which of them is in the first text is the label."""

    def pairs() -> Dataset:
        texts = [
            " ".join(word for word in text.split() if word not in MARKERS)
            for text in planted_rows()["text"]
        ]
        rows = [(n % 2, f"joy {text}", f"grief {text}") for n, text in enumerate(texts)]
        return Dataset.from_list(
            [{"a": (one, two)[n], "b": (two, one)[n], "label": n} for n, one, two in rows]
        )

    found = worth(replace(planted_task, data=pairs, text=("a", "b")), tmp_path)
    assert (found.metric, found.heldout_metric) == (1, 1)


def test_a_task_without_labels_has_none(tmp_path: Path, workbench: Workbench) -> None:
    model = workbench.problem.teacher
    model.save_pretrained(tmp_path / "teacher")
    workbench.tokenizer.save_pretrained(tmp_path / "teacher")
    sizes = {"alpha": 64, "select": 48, "heldout": 48}
    task = Task(name="x", data=planted_rows, metric="agreement", max_length=24, **sizes)
    inputs = read_inputs(task, Teacher(checkpoint=str(tmp_path / "teacher")))
    bench = prepare(inputs, session=Session(cache=tmp_path))
    assert bench.words is None
    assert not any("words alone" in note for note in bench.notes)


def test_it_is_fitted_once_for_all_launches(
    planted_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = worth(planted_task, tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(words, "_fitted", refuse)
    assert worth(planted_task, tmp_path) == found
    with pytest.raises(AssertionError, match="again"):
        worth(replace(planted_task, seed=1), tmp_path)


@pytest.mark.parametrize(("rows", "characters"), [(30, 10**9), (10**9, 1400)])
def test_of_much_text_a_sample_is_learnt_from(
    planted_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, characters: int
) -> None:
    monkeypatch.setattr(words, "_ROWS", rows)
    monkeypatch.setattr(words, "_CHARACTERS", characters)
    train = load_text(planted_task).roles["train"]
    sample = words._sample(train, 0)
    assert 10 < len(sample) == len(set(sample)) <= 30
    assert words._sample(train, 0).tolist() == sample.tolist() != words._sample(train, 1).tolist()
    assert worth(planted_task, tmp_path).metric < 1


@pytest.mark.parametrize("label", ["one label", "marks alone"])
def test_rows_that_teach_little_are_no_error(tmp_path: Path, label: str) -> None:
    labels: Labels = np.zeros(4, np.int64) if label == "one label" else np.arange(4) % 2
    texts = [(mark,) for mark in ("!", "?", "🦊", "。")]
    roles = {role: Examples(texts, labels) for role in ("train", "alpha", "select", "heldout")}
    task = Task(name="x", data=planted_rows)
    found = worth(task, tmp_path, LabelledText(roles, ["a", "b"]))
    assert found.metric == 1


def said(labels: Labels, wrong: int) -> Labels:
    """These labels, so many of them wrong."""
    answers = labels.copy()
    answers[:wrong] = 1 - answers[:wrong]
    return answers


@pytest.mark.parametrize(
    ("teacher", "linear", "noted"),
    [(60, 16, True), (16, 16, True), (14, 16, True), (4, 40, False), (0, 0, False)],
)
def test_a_teacher_that_is_not_clearly_better_is_noted(
    tiny_bert: str, teacher: int, linear: int, noted: bool
) -> None:
    """Each with so many wrong answers of 200."""
    labels: Labels = np.arange(200) % 2
    rows = [array("i", [1])] * 200
    split = Split("select", rows, rows, labels, pad_token_id=0, max_length=3)
    logits = torch.eye(2)[torch.from_numpy(said(labels, teacher))]
    asked = Teacher(checkpoint=tiny_bert, epochs=2, learning_rate=5e-5)
    note = words_note(asked, "accuracy", split, logits, said(labels[::-1].copy(), linear)[::-1])
    if not noted:
        assert note is None
        return
    assert note is not None
    numbers = f"is {1 - teacher / 200:.4f}, that of a linear model on tf-idf {1 - linear / 200:.4f}"
    assert numbers in note
    assert "(Teacher.epochs, now 2), at another rate (Teacher.learning_rate, now 5e-05; " in note
    assert "Teacher.trials finds one) or on more rows" in note
    several = Teacher(ensemble=(tiny_bert, tiny_bert))
    note = words_note(several, "accuracy", split, logits, said(labels[::-1].copy(), linear)[::-1])
    assert note is not None
    assert "(Teacher.learning_rate, now chosen by itself) or on more rows" in note
    note = words_note(asked, "accuracy", replace(split, truncated=9), logits, labels)
    assert note is not None
    assert "(max_length, now 3, cuts off 9 of 200; the linear model reads all)" in note


def test_a_launch_says_that_words_do_better_than_a_teacher_that_learnt_nothing(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    untrained = Teacher(checkpoint=tiny_bert, epochs=1, learning_rate=1e-9)
    bench = prepare(read_inputs(planted_task, untrained), session=Session(cache=tmp_path))
    assert bench.words is not None
    assert bench.words.metric > 0.9 > bench.unpruned.metric
    assert f"on tf-idf {bench.words.metric:.4f}; fine-tune it longer" in bench.notes[-1]


def test_numbers_are_compared_as_classes_are(tiny_bert: str) -> None:
    labels: Labels = np.linspace(0, 5, 60, dtype=np.float32)
    rows = [array("i", [1])] * 60
    split = Split("select", rows, rows, labels, pad_token_id=0, max_length=3)
    noisy = labels + np.random.default_rng(0).normal(0, 2, 60).astype(np.float32)
    teacher = Teacher(checkpoint=tiny_bert, learning_rate=5e-5)
    for own, other, noted in ((noisy, labels, True), (labels + noisy / 99, noisy, False)):
        logits = torch.from_numpy(own)[:, None]
        note = words_note(teacher, "pearson_spearman", split, logits, other)
        assert (note is not None) == noted

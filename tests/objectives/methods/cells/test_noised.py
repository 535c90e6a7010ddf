"""Copies of rows with words drawn anew, and the teacher's answers to them."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

from objectives.measures.evaluate import predict
from objectives.methods.cells.cell_search import noised, with_noised
from objectives.problem import Problem
from objectives.text.data import Split
from tests.objectives.conformance import RecordingProgress

FIRST, LAST = 1, 2


def split_of(*rows: list[int], types: list[list[int]] | None = None) -> Split:
    return Split(
        role="train",
        input_ids=[array("i", row) for row in rows],
        token_type_ids=[array("b", own) for own in types or [[0] * len(row) for row in rows]],
        labels=np.zeros(len(rows), np.int64),
        pad_token_id=0,
        max_length=8,
    )


def test_words_are_drawn_anew_from_all_words() -> None:
    rows = [FIRST, 10, 11, LAST, 12, LAST], [FIRST, *range(20, 24), LAST]
    types = [[0, 0, 0, 0, 1, 1], [0] * 6]
    made = noised(split_of(*rows, types=types), 500, 0, {FIRST, LAST})
    assert len(made) == 1000
    assert (made.labels == -1).all()
    same = []
    for place, (row, own) in enumerate(zip(made.input_ids, made.token_type_ids, strict=True)):
        begun = rows[place % 2]
        assert list(own) == types[place % 2]
        assert [one in (FIRST, LAST) for one in row] == [one in (FIRST, LAST) for one in begun]
        assert set(row) <= {*rows[0], *rows[1]}
        same += [a == b for a, b in zip(row, begun, strict=True) if b not in (FIRST, LAST)]
    assert np.mean(same) == pytest.approx(0.7 + 0.3 / 7, abs=0.03)
    again = (noised(split_of(*rows), 500, seed, {FIRST, LAST}) for seed in (0, 1))
    assert [made.input_ids == own.input_ids for own in again] == [True, False]


def test_a_row_without_words_stays() -> None:
    made = noised(split_of([FIRST, LAST]), 2, 0, {FIRST, LAST})
    assert [list(row) for row in made.input_ids] == [[FIRST, LAST]] * 2


def test_the_teacher_answers_once_for_a_run(fresh: Problem) -> None:
    progress = RecordingProgress()
    more = with_noised(fresh, 2, 0, progress)
    rows = len(fresh.train)
    assert len(more.train) == 3 * rows
    assert more.teacher_logits[:rows].equal(fresh.teacher_logits)
    wanted = predict(fresh.teacher, more.train, "cpu")
    torch.testing.assert_close(more.teacher_logits[rows:].cpu(), wanted[rows:])
    assert (more.train.labels[rows:] == wanted[rows:].argmax(-1).numpy()).all()
    assert progress.steps > 0
    again, later = RecordingProgress(), replace(fresh)  # of another launch
    assert with_noised(later, 2, 0, again).teacher_logits.equal(more.teacher_logits)
    assert again.steps == 0
    assert with_noised(fresh, 0, 0, progress) is fresh

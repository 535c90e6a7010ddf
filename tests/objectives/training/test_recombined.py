"""More rows out of the words of others, and the teacher's answers to them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from objectives.measures.evaluate import predict
from objectives.problem import Problem
from objectives.text.data import Split
from objectives.training.recombined import recombined, with_recombined
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


def test_a_row_is_a_part_or_two_parts_or_drawn_in_places() -> None:
    own, other = [10, 11, 12, 13], [20, 21, 22, 23, 24, 25]
    split = split_of([FIRST, *own, LAST], [FIRST, *other, LAST])
    made = recombined(split, 300, 0, {FIRST, LAST})
    assert len(made) == 600
    assert (made.labels == -1).all()
    kinds = dict.fromkeys(("part", "both", "same length"), 0)
    for row, types in zip(made.input_ids, made.token_type_ids, strict=True):
        first, *text, last = row
        assert (first, last) == (FIRST, LAST)
        assert len(row) == len(types) <= split.max_length
        assert set(text) <= {*own, *other}
        assert set(types) == {0}
        kinds["part"] += any(text == own[a : a + len(text)] for a in range(4)) and len(text) < 4
        kinds["both"] += text[0] in own and text[-1] in other and len(text) > 4
        kinds["same length"] += len(text) == len(other) and text != other
    assert min(kinds.values()) > 30, kinds
    assert made.input_ids == recombined(split, 300, 0, {FIRST, LAST}).input_ids
    assert made.input_ids != recombined(split, 300, 1, {FIRST, LAST}).input_ids


def test_of_a_pair_tokens_are_drawn_alone() -> None:
    row, types = [FIRST, 10, 11, LAST, 12, LAST], [0, 0, 0, 0, 1, 1]
    made = recombined(split_of(row, types=[types]), 50, 0, {FIRST, LAST})
    for ids, own in zip(made.input_ids, made.token_type_ids, strict=True):
        assert [ids[place] for place in (0, 3, 5)] == [FIRST, LAST, LAST]
        assert list(own) == types
    assert len({tuple(ids) for ids in made.input_ids}) > 5


@pytest.mark.parametrize("row", [[FIRST, LAST], [FIRST, 10, LAST]])
def test_short_rows_stay_rows(row: list[int]) -> None:
    for ids in recombined(split_of(row), 20, 0, {FIRST, LAST}).input_ids:
        assert ids[0] == FIRST
        assert ids[-1] == LAST


def test_the_teacher_answers_once_for_a_run(problem: Problem, tmp_path: Path) -> None:
    own = replace(problem, cache=tmp_path)
    progress = RecordingProgress()
    more = with_recombined(own, 2, 0, progress)
    rows = len(own.train)
    assert len(more.train) == 3 * rows
    assert more.teacher_logits[:rows].equal(own.teacher_logits)
    wanted = predict(own.teacher, more.train, "cpu")
    torch.testing.assert_close(more.teacher_logits[rows:].cpu(), wanted[rows:])
    assert (more.train.labels[rows:] == wanted[rows:].argmax(-1).numpy()).all()
    assert progress.steps > 0
    again, later = RecordingProgress(), replace(own)  # of another launch
    assert with_recombined(later, 2, 0, again).teacher_logits.equal(more.teacher_logits)
    assert again.steps == 0
    assert with_recombined(own, 0, 0, progress) is own

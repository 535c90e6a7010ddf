"""More train rows out of the words of those that are there, for students that learn from answers.

The teacher answers every row, so a row need not make sense. Tang et al. 2019 ("Distilling
Task-Specific Knowledge from BERT into Simple Neural Networks") mask words, swap them for others of
their kind and take n-grams. Here a row is a part of another, or the beginning of one and the end of
another, or one some of whose tokens are drawn anew; a pair of texts is always the last of these.
"""

import math
from array import array
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from objectives.measures.evaluate import EVALUATION_BATCH, predict
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.text.data import Split, no_labels

_DRAWN = 0.3
"""Chance of a token to be drawn anew, in rows where some are."""


def with_recombined(problem: Problem, copies: int, seed: int, progress: Progress) -> Problem:
    """The problem with so many rows more for each row of train, and the teacher's answers to them,
    which are made once for a run."""
    if not copies:
        return problem

    def more() -> Problem:
        train = problem.train
        split = recombined(train, copies, seed, {*problem.vocabulary.tokenizer.all_special_ids})

        def answer(folder: Path, _: Path) -> None:
            steps = math.ceil(len(split) / EVALUATION_BATCH)
            progress.begin("let the teacher answer recombined rows", steps)
            logits = predict(problem.teacher, split, problem.device, progress)
            np.save(folder / "logits.npy", logits.numpy())

        folder = problem.cached("recombined", {"copies": copies, "seed": seed}, answer)
        logits = torch.from_numpy(np.load(folder / "logits.npy"))
        both = replace(
            train,
            input_ids=train.input_ids + split.input_ids,
            token_type_ids=train.token_type_ids + split.token_type_ids,
            labels=np.concatenate([train.labels, split.answered(logits).labels]),
        )
        answers = torch.cat([problem.teacher_logits, logits.to(problem.device)])
        return replace(problem, train=both, teacher_logits=answers)

    return problem.once(("recombined", copies, seed), more)


def recombined(split: Split, copies: int, seed: int, special: Set[int]) -> Split:
    """So many rows for each row of the split, without labels; `special` are the tokens that are no
    words, which stay where they are."""
    generator = np.random.default_rng(seed)
    words = np.array([one for row in split.input_ids for one in row if one not in special])
    rows, types = list["array[int]"](), list["array[int]"]()
    for own, of_own in zip(split.input_ids * copies, split.token_type_ids * copies, strict=True):
        other = split.input_ids[int(generator.integers(len(split)))]
        made = _row(own, other, words, generator, special)[: split.max_length - 1]
        made.append(own[-1])
        rows.append(array("i", made))
        types.append(of_own[: len(made)] + array("b", of_own[-1:] * (len(made) - len(of_own))))
    return replace(
        split,
        input_ids=rows,
        token_type_ids=types,
        labels=no_labels(len(rows), split.labels),
        truncated=0,
    )


def _row(
    own: Sequence[int],
    other: Sequence[int],
    words: NDArray[np.int64],
    generator: np.random.Generator,
    special: Set[int],
) -> list[int]:
    """The tokens of a row without the last."""
    first, text, more = own[0], list(own[1:-1]), list(other[1:-1])
    way = generator.integers(3)
    if way and text and more and special.isdisjoint(text + more):
        if way == 1:
            length = generator.integers(1, len(text) + 1)
            start = generator.integers(len(text) - length + 1)
            return [first, *text[start : start + length]]
        end, start = generator.integers(1, len(text) + 1), generator.integers(len(more))
        return [first, *text[:end], *more[start:]]
    drawn = generator.random(len(text)) < _DRAWN
    new = generator.choice(words, len(text)) if len(words) else text
    swaps = zip(text, drawn, new, strict=True)
    return [first, *(int(n) if d and old not in special else old for old, d, n in swaps)]

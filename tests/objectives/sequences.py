"""Tasks on made-up tokens, in which the label hangs on where a token stands."""

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from objectives.problem import Problem
from objectives.text.data import Split

FIRST = 8
"""The first token of the tiny vocabulary that is no special one and no marker."""
Numbers = NDArray[np.int64]


def labelled_by(problem: Problem, tokens: Numbers, labels: Numbers, train: int) -> Problem:
    """The tiny problem with these rows, (rows, length): the first of train, the others of alpha.
    The teacher is sure of two labels."""

    def split(like: Split, rows: slice) -> Split:
        own: dict[str, Any] = {
            "input_ids": [array("i", row) for row in (FIRST + tokens[rows]).tolist()],
            "token_type_ids": [array("i", [0] * tokens.shape[1]) for _ in tokens[rows]],
        }
        return replace(like, **own, labels=labels[rows])

    said = 6 * torch.nn.functional.one_hot(torch.from_numpy(labels), 3).float()
    return replace(
        problem,
        train=split(problem.train, slice(train)),
        alpha=split(problem.alpha, slice(train, None)),
        teacher_logits=said[:train],
        alpha_logits=said[train:],
    )


def pairs(rows: int, length: int, seed: int) -> tuple[Numbers, Numbers]:
    """Each row has one token 0, and behind it one token 1: for label 1 three or four places, within
    five tokens; for label 0 farther."""
    draw = np.random.default_rng(seed)
    tokens, labels = draw.integers(2, 8, (rows, length)), draw.integers(2, size=rows)
    for row, label in zip(tokens, labels, strict=True):
        apart = int(draw.choice((3, 4)) if label else draw.integers(5, length))
        start = int(draw.integers(length - apart))
        row[start], row[start + apart] = 0, 1
    return tokens, labels


def delayed(rows: int, length: int, lag: int, seed: int) -> tuple[Numbers, Numbers]:
    """Rows of tokens 0 and 1; the label is the token `lag` places before the last."""
    tokens = np.random.default_rng(seed).integers(2, size=(rows, length))
    return tokens, tokens[:, -1 - lag]

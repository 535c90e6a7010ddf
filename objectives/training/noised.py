"""More train rows: copies with some words drawn anew, for students that learn from answers.

Unigram noise (Xie et al. 2017, "Data Noising as Smoothing in Neural Network Language Models"): a
token becomes one that is drawn from all tokens of train. The teacher answers the copies, as in Tang
et al. 2019 ("Distilling Task-Specific Knowledge from BERT into Simple Neural Networks"), so that
they need not make sense.
"""

from array import array
from collections.abc import Set
from dataclasses import replace

import numpy as np
import torch

from objectives.cache import kernel_lock
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.session import Session
from objectives.text.data import Split, no_labels
from objectives.training.teacher_states import kept_logits

_DRAWN = 0.3
"""Chance of a token to be drawn anew."""


def with_noised(problem: Problem, copies: int, seed: int, progress: Progress) -> Problem:
    """The problem with so many copies of each row of train after these rows, and the teacher's
    answers to them, which are made once for a run."""
    if not copies:
        return problem

    def more() -> Problem:
        train = problem.train
        split = noised(train, copies, seed, {*problem.vocabulary.tokenizer.all_special_ids})
        session = Session(cache=problem.cache, device=problem.device, progress=progress)
        problem.cache.mkdir(parents=True, exist_ok=True)
        with kernel_lock(problem.cache / "noised.lock"):  # one worker asks, the others wait
            logits = kept_logits(problem.teacher, split, session=session, role="noised rows")
        both = replace(
            train,
            input_ids=train.input_ids + split.input_ids,
            token_type_ids=train.token_type_ids + split.token_type_ids,
            labels=np.concatenate([train.labels, split.answered(logits).labels]),
        )
        answers = torch.cat([problem.teacher_logits, logits.to(problem.device)])
        return replace(problem, train=both, teacher_logits=answers)

    return problem.once(("noised", copies, seed), more)


def noised(split: Split, copies: int, seed: int, special: Set[int]) -> Split:
    """So many copies of each row of the split, without labels; tokens that are `special` stay."""
    generator = np.random.default_rng(seed)
    tokens = np.concatenate(split.input_ids)
    is_word = ~np.isin(tokens, list(special))
    ends = np.cumsum(split.lengths)[:-1]
    rows: list[array[int]] = []
    for _ in range(copies):
        drawn = is_word & (generator.random(len(tokens)) < _DRAWN)
        copy = tokens.copy()
        copy[drawn] = generator.choice(tokens[is_word], drawn.sum())
        rows += [array("i", own.tolist()) for own in np.split(copy, ends)]
    return replace(
        split,
        input_ids=rows,
        token_type_ids=split.token_type_ids * copies,
        labels=no_labels(len(rows), split.labels),
    )

"""A second task on the rows of the tiny one."""

import copy
from dataclasses import replace

import numpy as np
import torch

from objectives.problem import Problem, Words
from objectives.text.data import Split


def by_length(problem: Problem) -> Problem:
    """Whether a text is long: another question to the same texts, with two answers, whose teacher
    has the words of the first one's."""
    teacher = copy.deepcopy(problem.teacher)
    teacher.config.id2label, teacher.config.label2id = {0: "no", 1: "yes"}, {"no": 0, "yes": 1}

    def labelled(split: Split) -> Split:
        return replace(split, labels=(split.lengths > 12).astype(np.int64))

    train = labelled(problem.train)
    return replace(
        problem,
        teacher=teacher,
        words=Words.of(teacher),
        train=train,
        alpha=labelled(problem.alpha),
        teacher_logits=6 * torch.nn.functional.one_hot(torch.from_numpy(train.labels)).float(),
        select_score=lambda model: 0.0,
    )

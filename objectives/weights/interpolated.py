"""Weights on the way back from a training to where it began.

A student that is trained at all sizes moves away from its teacher for the sake of the small ones. A
large cut is nearer with weights between the two ends (after WiSE-FT, Wortsman et al. 2022): the
nearly whole model with those of the beginning, a model below half of the FLOPs with the trained.
"""

import copy
import math

import numpy as np
import torch

from objectives.measures.evaluate import nearness
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.pretrained import Classifier
from objectives.students.bert.quantising import quantised

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way back
_ROWS = 256  # of alpha, that judge


def between(trained: Classifier, begun: Classifier, share: float) -> Classifier:
    """The uncut model with weights at this share of the way back: 0 is `trained`, 1 is `begun`."""
    if not share:
        return trained
    ends = zip(trained.state_dict().items(), begun.state_dict().values(), strict=True)
    model = copy.deepcopy(trained)
    weights = {name: torch.lerp(own, back, share) for (name, own), back in ends}
    model.load_state_dict(weights)
    return model


def nearest(
    problem: Problem,
    trained: Classifier,
    units: BertArchitecture,
    in_bits: BertArchitecture | None = None,
) -> Classifier:
    """Of the uncut models from `trained` back to the student of the problem the one whose cut to
    these units, `in_bits` if these are given, answers most like the teacher, on rows of `alpha`."""
    if problem.student_is_new:  # it does not know the task
        return trained
    rows = np.random.default_rng(0).permutation(len(problem.alpha))[:_ROWS]
    judging, wanted = problem.alpha.at(rows), problem.alpha_logits[torch.from_numpy(rows)].cpu()
    found, best = trained, -math.inf
    for share in _SHARES:
        model = between(trained, problem.student, share)
        smaller = quantised(cut(model.state_dict(), model.config, units), in_bits or units)
        if (near := nearness(smaller, judging, wanted, problem.device)) > best:
            found, best = model, near
    return found

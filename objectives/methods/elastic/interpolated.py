"""Weights on the way back from a training to where it began.

A student that is trained at all sizes moves away from its teacher for the sake of the small ones. A
large cut is nearer with weights between the two ends (after WiSE-FT, Wortsman et al. 2022): the
nearly whole model with those of the beginning, a model below half of the FLOPs with the trained.
"""

import copy

import numpy as np
import torch
from torch import Tensor

from objectives.measures.evaluate import nearness
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.pretrained import Classifier
from objectives.students.bert.quantising import quantised

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way back
_ROWS = 256  # of alpha, that judge


def between(trained: Classifier, begun: Classifier, share: float) -> dict[str, Tensor]:
    """The weights at this share of the way back: at 0 those of `trained`, at 1 those of `begun`."""
    ends = zip(trained.state_dict().items(), begun.state_dict().values(), strict=True)
    return {name: torch.lerp(end, back, share) for (name, end), back in ends}


def nearest(
    problem: Problem, trained: Classifier, units: BertArchitecture, in_bits: BertArchitecture
) -> Classifier:
    """The weights between `trained` and the student of the problem that answer most like the
    teacher once they are cut to these units and rounded, on rows of `alpha`."""
    if problem.student_is_new:  # it does not know the task
        return trained
    rows = np.random.default_rng(0).permutation(len(problem.alpha))[:_ROWS]
    judging, wanted = problem.alpha.at(rows), problem.alpha_logits[torch.from_numpy(rows)].cpu()

    def near(share: float) -> float:
        weights = between(trained, problem.student, share)
        smaller = quantised(cut(weights, trained.config, units), in_bits)
        return nearness(smaller, judging, wanted, problem.device)

    share = max(_SHARES, key=near)
    if not share:
        return trained
    model = copy.deepcopy(trained)
    model.load_state_dict(between(trained, problem.student, share))
    return model

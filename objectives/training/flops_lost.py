"""The share of its FLOPs that a student loses, by which its learning rate goes whatever a study
counts: every cut unit saves FLOPs, but maybe no milliseconds and few parameters."""

import torch

from objectives.measures.cost import Cost, Flops
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, units_of
from objectives.students.bert.cutting import shape_of


def flops_lost(problem: Problem, architecture: BertArchitecture) -> float:
    """FLOPs that a student cut to `architecture` lacks, as a share of the teacher's."""
    return _lost(problem, Flops(problem.shape, problem.seq_len).exact(architecture))


def flops_to_lose(problem: Problem, target_ratio: float, spaces: tuple[str, ...]) -> float:
    """FLOPs that a student will lack at a target ratio of what the study counts, as a share."""
    # If that is not FLOPs: as if the same share of each of the searched kinds of units went.
    cost, flops = problem.budget.cost, Flops(problem.shape, problem.seq_len)
    if isinstance(cost, Flops):
        return 1 - target_ratio
    least, least_flops = _least(cost, spaces), _least(flops, spaces)
    share = (target_ratio * problem.budget.full - least) / ((cost.full - least) or 1.0)
    share = min(1.0, max(0.0, share))
    return _lost(problem, least_flops + share * (flops.full - least_flops))


def _lost(problem: Problem, flops: float) -> float:
    return 1 - flops / Flops(shape_of(problem.teacher.config), problem.seq_len).full


def _least(cost: Cost, spaces: tuple[str, ...]) -> float:
    """Cost when all units of these spaces are closed."""
    shape = cost.shape
    closed = {space: torch.zeros(1, shape.layers, *units_of(shape, space)) for space in spaces}
    return cost.expected(closed).item()

"""CAS: task after task on one set of weights, which are not to forget."""

from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
import torch

from maskfront import Cas, Problem, SearchResult
from objectives.measures.evaluate import nearness, predict
from objectives.progress import SilentProgress
from objectives.workbench.workbench import Workbench
from tests.objectives.conformance import SearchMethodConformance
from tests.objectives.several import by_length

QUICK = Cas(
    **{"width": 16, "nodes": 1, "operations": ("conv3", "max3"), "edges": 1, "batch_size": 16},
    **{"search_epochs": 0.2, "epochs": 0.2, "rewards": 4, "candidates": 4},
)


@pytest.fixture(scope="module")
def problem(workbench: Workbench) -> Problem:
    """The tiny task with another beside it; students are compared by their answers on alpha."""
    alone = workbench.problem
    answers = predict(alone.teacher, alone.alpha, "cpu")
    near = partial(nearness, teacher=answers, split=alone.alpha, device="cpu")
    return replace(alone, select_score=near, beside=(by_length(alone),))


class TestCas(SearchMethodConformance):
    quick = QUICK

    def test_the_last_task_forgets_nothing(self, results: list[SearchResult]) -> None:
        for result in results:
            (last,) = result.beside
            assert last.forgotten is None
            assert result.forgotten is not None

    def test_the_tasks_answer_by_the_same_weights(self, results: list[SearchResult]) -> None:
        for result in results:
            (last,) = result.beside
            types = [one.model.types.weight for one in (result, last)]
            assert torch.equal(*types)


@pytest.mark.slow
def test_it_forgets_less_than_without_its_penalty(problem: Problem) -> None:
    """In the mean over seeds, which differ in the order of rows and in all that is drawn."""
    means = []
    for weight in (0.0, 1.0):
        method = replace(
            QUICK,
            **{"epochs": 4, "learning_rate": 1e-2},
            **{"sparsity_weight": 0, "orthogonality_weight": weight},
        )
        found = [
            next(Cas.search([method], problem, seed=seed, progress=SilentProgress()))
            for seed in range(3)
        ]
        means.append(fmean(one.forgotten for one in found))  # type: ignore[union-attr,arg-type]
    assert means[1] < 0.2 * means[0] > 0

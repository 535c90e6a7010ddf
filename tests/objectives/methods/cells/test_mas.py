"""MAS: one cell for several tasks, and a model of it for each."""

from dataclasses import replace
from statistics import fmean

import pytest

from maskfront import Enas, Mas, Problem, SearchResult
from objectives.methods.cells.base.choosing import scored
from objectives.training.scoring import all_alpha
from objectives.workbench.workbench import Workbench
from tests.objectives.conformance import SearchMethodConformance, assert_same, search_alone
from tests.objectives.several import by_length

QUICK = Mas(
    **{"width": 16, "nodes": 1, "operations": ("conv3", "max3"), "edges": 1, "batch_size": 16},
    **{"search_epochs": 0.2, "epochs": 0.2, "rewards": 4, "candidates": 4},
)


@pytest.fixture(scope="module")
def alone(workbench: Workbench) -> Problem:
    """The tiny task by itself."""
    return workbench.problem


@pytest.fixture(scope="module")
def problem(alone: Problem) -> Problem:
    """With another task beside it."""
    return replace(alone, beside=(by_length(alone),))


class TestMas(SearchMethodConformance):
    quick = QUICK

    def test_each_task_has_a_model_of_the_one_cell(
        self, results: list[SearchResult], problem: Problem
    ) -> None:
        for result in results:
            (other,) = result.beside
            assert other.architecture == result.architecture
            outputs = [one.model.config.num_labels for one in (result, other)]
            assert outputs == [3, problem.beside[0].teacher_logits.shape[1]]


def test_one_task_alone_is_enas(alone: Problem) -> None:
    enas = Enas(**vars(QUICK))
    assert_same(search_alone(QUICK, alone), search_alone(enas, alone), alone)


def test_a_reward_is_the_mean_over_the_tasks(problem: Problem) -> None:
    tasks = (problem, *problem.beside)
    net = QUICK._super_net(problem, 0)
    nets = QUICK._with_heads(net, problem, 0)
    (place,) = QUICK.space.places
    cells = [{place: name} for name in ("conv3", "max3")]
    rows = [all_alpha(task) for task in tasks]
    together = [score for _, score in QUICK._scored(nets, cells, rows, tasks)]
    apart = [
        [score for _, score in scored(QUICK, *one)]
        for one in ((n, cells, r, t) for n, r, t in zip(nets, rows, tasks, strict=True))
    ]
    assert together == [fmean(pair) for pair in zip(*apart, strict=True)]
    assert apart[0] != apart[1]


def test_all_but_the_heads_is_shared(problem: Problem) -> None:
    net = QUICK._super_net(problem, 0)
    _, other = QUICK._with_heads(net, problem, 0)
    shared = {id(weight) for weight in net.parameters()}
    apart = {n.split(".")[1] for n, weight in other.named_parameters() if id(weight) not in shared}
    assert apart == {"LayerNorm", "pooler", "classifier"}


def test_what_is_cached_for_several_tasks_is_named_by_all(problem: Problem, alone: Problem) -> None:
    (other,) = problem.beside
    assert len({one.fingerprint for one in (problem, alone, other)}) == 3

"""What a student loses in FLOPs, and that its training goes by this whatever the study counts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

import objectives.training.stage_training
from objectives.measures.budget import Budget
from objectives.measures.cost import Cost, Flops, Params, Units
from objectives.measures.latency import Conditions, Latency
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.pruning.staged_method import flops_lost, flops_to_lose
from objectives.pruning.staged_search import Chosen, staged_search
from objectives.search_method import Outcome, SearchResult
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.student import keep_layers
from objectives.training.optimisation import PopulationOptimizer, Schedule
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import RecordingProgress, assert_same, search_alone

FLAT = Latency(
    TINY,
    Conditions("cpu", 1, 1, 24),
    heads=(0, 2, 4),
    ffn=(0, 48),
    milliseconds=((1.0, 2.0), (2.0, 4.0), (2.0, 4.0)),
    rest=1.0,
)
"""Of four heads the last two cost nothing, as a table that was noisy may have it."""
COSTS: dict[str, Cost] = {
    "params": Params(TINY, embeddings=50_000, vocabulary=0),
    "units": Units(TINY, ("heads", "ffn")),
    "latency": FLAT,
}
FEWER_HEADS = BertArchitecture(
    tuple(LayerUnits(tuple(range(heads)), tuple(range(48))) for heads in (4, 3, 3))
)
RECOVER = Stage(name="recover", epochs=0.5, learning_rate=1e-3)


def counting(problem: Problem, name: str) -> Problem:
    """The problem with another cost."""
    cost = COSTS[name]
    return replace(problem, budget=Budget(cost, cost.full))


def cut_to(architecture: BertArchitecture, problem: Problem) -> Outcome:
    """A student that is cut to this and recovers."""
    method = RandomPruning(batch_size=16, stages=(RECOVER,))
    chosen, progress = Chosen([architecture]), RecordingProgress()
    (outcome,) = staged_search([method], problem, chosen, seed=3, progress=progress)
    return outcome


@pytest.mark.parametrize("name", COSTS)
def test_a_cut_student_recovers_alike_whatever_the_study_counts(
    problem: Problem, name: str
) -> None:
    """A cut that ties with the full model among them: milliseconds, here."""
    other = counting(problem, name)
    assert (other.budget.cost.exact(FEWER_HEADS) == other.budget.full) == (name == "latency")
    one, same = cut_to(FEWER_HEADS, problem), cut_to(FEWER_HEADS, other)
    assert isinstance(one, SearchResult)
    assert isinstance(same, SearchResult)
    assert same.curve == one.curve
    assert len(same.curve) == 8
    assert_same(one, same, problem)


@pytest.mark.parametrize("name", COSTS)
def test_one_that_lost_nothing_has_nothing_to_recover(problem: Problem, name: str) -> None:
    whole = cut_to(BertArchitecture.full(TINY), counting(problem, name))
    assert isinstance(whole, SearchResult)
    assert whole.curve == []


def test_the_share_is_that_of_the_teachers_flops(problem: Problem) -> None:
    teacher = Flops(TINY, problem.seq_len)
    share = 1 - teacher.exact(FEWER_HEADS) / teacher.full
    assert problem.budget.cost == teacher
    assert flops_lost(problem, FEWER_HEADS) == share > 0
    assert flops_lost(problem, BertArchitecture.full(TINY)) == 0
    assert flops_to_lose(problem, 0.3, ("heads", "ffn")) == 0.7
    small = replace(TINY, layers=2)
    shallow = replace(
        problem,
        student=keep_layers(problem.teacher, (0, 2)),
        budget=replace(problem.budget, cost=Flops(small, 24)),
    )
    expected = 1 - Flops(small, problem.seq_len).full / teacher.full
    assert flops_lost(shallow, BertArchitecture.full(small)) == expected
    in_params = replace(
        shallow, budget=Budget(Params(small, 50_000, 0), Params(TINY, 50_000, 0).full)
    )
    assert flops_to_lose(in_params, 1, ("heads", "ffn")) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["params", "units"])
@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("ffn",)], ids="+".join)
def test_a_quarter_of_the_units_is_as_many_flops_whatever_their_price(
    problem: Problem, name: str, spaces: tuple[str, ...]
) -> None:
    heads = (0,) if "heads" in spaces else (0, 1, 2, 3)
    quarter = BertArchitecture((LayerUnits(heads, tuple(range(12))),) * 3)
    other = counting(problem, name)
    ratio = other.budget.cost.exact(quarter) / other.budget.full
    lost = flops_lost(other, quarter)
    assert flops_to_lose(other, ratio, spaces) == pytest.approx(lost)
    assert flops_to_lose(other, 1.0, spaces) == 0
    everything = flops_to_lose(other, 1e-9, spaces)
    assert lost < everything < 1


def test_a_search_goes_at_the_rate_of_what_it_is_to_lose(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class Seen(PopulationOptimizer):
        def __init__(
            self, weights: dict[str, Tensor], rates: Sequence[float], steps: int, own: Schedule
        ):
            seen.extend(rates)
            super().__init__(weights, rates, steps, own)

    monkeypatch.setattr(objectives.training.stage_training, "PopulationOptimizer", Seen)
    search = Stage(name="search", epochs=0.2, searches=True, learning_rate=1e-3)
    method = MaskSearch(batch_size=16, tolerance=0.1, target_ratio=0.9, stages=(search, RECOVER))
    other = counting(problem, "params")
    result = search_alone(method, other)
    assert seen[0] == pytest.approx(1e-3 * flops_to_lose(other, 0.9, method.spaces))
    assert seen[1] == pytest.approx(1e-3 * flops_lost(other, result.architecture))
    assert seen[0] > 1e-3 * 0.2

"""APS-T: what the controller learns of, when projections move, the budget, what is cut."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from maskfront import ApsT
from objectives.methods import aps_t
from objectives.methods.aps_t import Projections, _Search
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import (
    OnMpnet,
    PruningConformance,
    RecordingProgress,
    logits_of,
    search_alone,
)

SEARCH = Stage(name="search", epochs=0.1, learning_rate=1e-3, searches=True)
POLISH = Stage(name="polish", epochs=0.1, learning_rate=1e-3)
QUICK = ApsT(batch_size=16, tolerance=0.1, stages=(SEARCH, POLISH))


class TestConformance(PruningConformance):
    quick = QUICK


@pytest.mark.slow
class TestConformanceOfMpnet(OnMpnet, TestConformance):
    pass


def test_phi_rests_in_the_warm_up_and_then_falls(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aps_t, "_EVERY", 2)
    stages = (replace(SEARCH, epochs=4),)
    method = replace(QUICK, stages=stages, warmup=0.25)
    curve = search_alone(method, problem).curve
    assert {point["stage"] for point in curve} == {"search"}
    sharing = torch.tensor([float(point["sharing"]) for point in curve])
    warm = len(curve) // 4
    assert (sharing[:warm] == sharing[0]).all()
    later = sharing[warm + 2 :]
    assert (later[::2].diff() < 0).all()
    assert (later.diff() <= 0).all()
    orders = {"heads": torch.arange(4).repeat(3, 1), "ffn": torch.arange(48).repeat(3, 1)}
    independent = Projections("independent", orders, method.shares).separate(0.0)
    assert later[-1] < 0.5 * (sharing[0] + float(independent))


@pytest.mark.parametrize("sharing", ["ordinal", "independent"])
def test_what_does_not_move_keeps_its_units(problem: Problem, sharing: Any) -> None:
    method = replace(QUICK, sharing=sharing, stages=(SEARCH,))
    found = search_alone(method, problem)
    assert len({point["sharing"] for point in found.curve}) == 1
    assert "projection_rate" in method.inactive()
    assert "projection_rate" not in QUICK.inactive()


def test_a_score_is_less_where_a_candidate_costs_more_than_r(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aps_t, "logits_score", lambda *_: 0.5)
    search = _Search(replace(QUICK, target_ratio=0.4, cost_power=2.0), problem, 0)
    ratios, scores = [], []
    for candidate in search.controller.propose(50):
        ratio = problem.budget.ratio(
            search.projections.units(search.model(candidate), problem.shape)
        )
        assert search.ratio(candidate) == pytest.approx(ratio / 0.4)
        ratios.append(ratio / 0.4)
        scores.append(search.score(candidate, []))
    assert min(ratios) < 1 < max(ratios)
    for ratio, score in zip(ratios, scores, strict=True):
        assert score == pytest.approx(0.5 if ratio <= 1 else 0.5 * ratio**-2)


def test_what_is_cut_computes_what_was_projected(problem: Problem) -> None:
    method = replace(QUICK, stages=(replace(SEARCH, epochs=1),), projection_rate=0.09, warmup=0)
    search = _Search(method, problem, 3)  # the seed of `run`
    candidate = search.found(RecordingProgress())
    found = search_alone(method, problem)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.widths(TINY) == search.model(candidate)
    batch = next(problem.alpha.in_order(1000, "cpu"))
    projected = search.student(candidate).logits(batch)[0].detach()
    cut = logits_of(found, problem)[batch.rows]
    torch.testing.assert_close(cut, projected, atol=1e-4, rtol=0)


def test_near_the_whole_model_the_answers_stay(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student hardly learns there: projections that moved at their full rate would ruin it."""
    monkeypatch.setattr(aps_t, "_EVERY", 2)
    method = replace(QUICK, target_ratio=0.97, stages=(replace(SEARCH, epochs=4), POLISH))
    answers = logits_of(search_alone(method, problem), problem).argmax(-1)
    same = answers == problem.alpha_logits.argmax(-1)
    assert same.float().mean() > 0.9


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
def test_candidates_are_brought_into_the_budget(problem: Problem, ratio: float) -> None:
    search = _Search(replace(QUICK, target_ratio=ratio, tolerance=0.05), problem, 0)
    drawn = search.controller.propose(20)
    assert max(search.miss(one) for one in drawn) > 0
    near = [search.nearest(one) for one in drawn]
    assert min(search.miss(one) for one in near) == 0
    assert all(search.miss(n) <= search.miss(one) for n, one in zip(near, drawn, strict=True))
    inside = [one for one in drawn if search.miss(one) == 0]
    assert all(search.nearest(one) == one for one in inside)


def test_what_is_not_searched_stays_whole(problem: Problem) -> None:
    stages = (SEARCH, replace(POLISH, loss="intermediate"))
    found = search_alone(replace(QUICK, spaces=("ffn",), target_ratio=0.7, stages=stages), problem)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.heads_per_layer == (4, 4, 4)
    assert set(found.architecture.ffn_per_layer) <= {5, 12, 24, 36, 48}
    assert min(found.architecture.ffn_per_layer) < 48


@pytest.mark.slow
def test_the_student_learns_what_a_transition_made_it_forget(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (replace(SEARCH, epochs=12),)
    monkeypatch.setattr(aps_t, "_EVERY", 2)
    method = replace(QUICK, stages=stages)
    losses = torch.tensor([float(point["loss"]) for point in search_alone(method, problem).curve])
    means = torch.stack([part.mean() for part in losses.chunk(12)])
    highest = means.argmax()
    assert 4 <= highest < 10, "when projections move"
    assert means[-1] < 0.75 * means[highest]


@pytest.mark.slow
def test_the_controller_learns_to_meet_r(problem: Problem) -> None:
    """A FLOPs loss that counts for all: its draws cost less after the search than before."""
    method = replace(
        QUICK,
        target_ratio=0.4,
        cost_power=10.0,
        grad_rescale=2e-2,
        warmup=0.0,
        stages=(replace(SEARCH, epochs=6),),
    )
    search = _Search(method, problem, 0)
    before = sum(search.ratio(one) for one in search.controller.propose(100)) / 100
    search.found(RecordingProgress())
    after = sum(search.ratio(one) for one in search.controller.propose(100)) / 100
    assert after < 1.2 < before

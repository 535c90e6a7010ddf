"""Masks along the order of a training: where they begin, how they move, what they never touch."""

import math
from dataclasses import replace

import pytest
import torch

from objectives.methods.elastic.elastic_search import ElasticSearch
from objectives.methods.elastic.ordered_masks import OrderedMasks
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.training.losses import prediction_loss
from objectives.training.population import Population
from tests.objectives.conformance import RecordingProgress

METHOD = ElasticSearch(target_ratio=0.5, tolerance=0.02, grad_rescale=10.0, flops_weight=0.1)


def begun(
    problem: Problem, *members: ElasticSearch, size: int = 16
) -> tuple[OrderedMasks, dict[str, torch.Tensor], list[BertArchitecture]]:
    """Masks of these members, and the scores and architectures that they begin with."""
    scores = members[0]._scores(problem)
    units = [member.within_budget(scores, problem) for member in members]
    return OrderedMasks(members, problem, scores, units, batch_size=size, seed=0), scores, units


def test_masks_begin_at_the_ranking_and_fall_with_the_rank(problem: Problem) -> None:
    masks, _, (units,) = begun(problem, METHOD)
    for space, counts in (("heads", units.heads_per_layer), ("ffn", units.ffn_per_layer)):
        for layer, count in enumerate(counts):
            mask_U = masks.masks(0.0)[space][0, layer]
            for rank, mask in enumerate(mask_U.tolist()):
                alpha = math.log(max(count, 0.25) / (rank + 0.5))
                expected = 1 / (1 + math.exp(-alpha / 0.1))
                assert mask == pytest.approx(expected if expected > 1e-4 else 0.0, abs=1e-5)
    assert masks.masks(0.0)["ffn"].sum() != masks.masks(1.0)["ffn"].sum()


def test_unmoved_masks_discretise_to_the_ranking(problem: Problem) -> None:
    masks, _, (units,) = begun(problem, METHOD)
    assert METHOD.within_budget(masks.scores(0), problem, threshold=0.0) == units


def test_a_step_goes_kappa_times_down_the_gradient(problem: Problem) -> None:
    """The slope of the loss by central differences, at the whole model's own forward pass."""
    free = replace(METHOD, flops_weight=0.0, grad_rescale=1e-3)
    masks, *_ = begun(problem, free)
    batch = next(problem.alpha.shuffled(16, 0, "cpu"))
    population = Population.of([problem.student])

    def loss_at(shift: float) -> float:
        with torch.no_grad():
            moved = masks.begun["ffn"].double() + 0
            moved[:, 1] += shift
            by_rank = {"ffn": (moved / 0.1).sigmoid(), "heads": masks.masks(0.0)["heads"].double()}
            unit_masks = {
                space: (mask * (mask > 1e-4)).float().gather(-1, masks.ranks[space][None])
                for space, mask in by_rank.items()
            }
            logits = population.logits(batch, unit_masks)
            return prediction_loss(logits, problem.alpha_logits[batch.rows]).item()

    slope = (loss_at(0.02) - loss_at(-0.02)) / 0.04
    masks.search(problem.student, 1, torch.float32, RecordingProgress())
    assert masks.alpha["ffn"][0, 1].item() == pytest.approx(-1e-3 * slope, rel=0.05, abs=1e-7)


def test_lambda_pushes_masks_above_the_band_down_and_those_below_up(problem: Problem) -> None:
    wide, narrow = (replace(METHOD, target_ratio=ratio, flops_weight=50.0) for ratio in (0.7, 0.3))
    _, scores, _ = begun(problem, wide)
    at_wide = wide.within_budget(scores, problem)
    above = OrderedMasks([narrow], problem, scores, [at_wide], batch_size=16, seed=0)
    below = OrderedMasks(
        [wide], problem, scores, [narrow.within_budget(scores, problem)], batch_size=16, seed=0
    )
    for search in (above, below):
        search.search(problem.student, 1, torch.float32, RecordingProgress())
    assert max(shift.max() for shift in above.alpha.values()) <= 0
    assert min(shift.min() for shift in above.alpha.values()) < -0.1
    assert min(shift.min() for shift in below.alpha.values()) >= 0
    assert max(shift.max() for shift in below.alpha.values()) > 0.1


def test_given_widths_stay(problem: Problem) -> None:
    method = replace(METHOD, heads=(1, 2, 3), grad_rescale=1e3)
    masks, *_ = begun(problem, method)
    masks.search(problem.student, 3, torch.float32, RecordingProgress())
    assert masks.masks(1.0)["heads"].sum(-1).tolist() == [[1, 2, 3]]
    assert masks.alpha["ffn"].any()


def test_the_student_is_left_as_it_was(problem: Problem) -> None:
    before = {name: weight.clone() for name, weight in problem.student.state_dict().items()}
    masks, *_ = begun(problem, METHOD)
    masks.search(problem.student, 2, torch.float32, RecordingProgress())
    after = problem.student.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)

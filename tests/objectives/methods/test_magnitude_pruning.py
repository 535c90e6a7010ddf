"""Magnitude pruning: the mean square of what a unit takes with it, against the cut itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from objectives.methods.baselines.magnitude_pruning import MagnitudePruning, mean_squares
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, units_of
from objectives.students.bert.cutting import cut
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import PruningConformance

QUICK = MagnitudePruning(
    batch_size=16,
    tolerance=0.1,
    stages=(Stage(name="recover", epochs=0.5, learning_rate=1e-3),),
)


class TestConformance(PruningConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> MagnitudePruning:
        return QUICK


def weights_of(problem: Problem, space: str, place: tuple[int, ...]) -> tuple[float, int]:
    """Sum of squares and number of the matrix weights that closing a unit removes."""
    mask = torch.ones(TINY.layers, *units_of(TINY, space), dtype=torch.bool)
    if space in ("qk", "v"):  # one dimension of every head, so that they stay equally many
        mask[place[0], :, place[2]] = False
    else:
        mask[place] = False
    student = problem.student
    model = cut(
        student.state_dict(),
        student.config,
        BertArchitecture.from_masks(TINY, {space: mask.tolist()}),
    )

    def total(weights: dict[str, torch.Tensor]) -> tuple[float, int]:
        matrices = [w for n, w in weights.items() if n.endswith("weight") and w.ndim == 2]
        return sum(float(w.detach().square().sum()) for w in matrices), sum(
            w.numel() for w in matrices
        )

    before, after = total(dict(student.named_parameters())), total(dict(model.named_parameters()))
    return before[0] - after[0], before[1] - after[1]


@pytest.mark.parametrize(
    ("space", "place"), [("heads", (1, 2)), ("ffn", (0, 5)), ("input", (2, 0, 3))]
)
def test_it_is_the_mean_square_of_what_a_cut_removes(
    problem: Problem, space: str, place: tuple[int, ...]
) -> None:
    squares, number = weights_of(problem, space, place)
    expected = squares / number
    actual = mean_squares(problem.student, TINY)[space][place]
    assert actual.item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("space", ["qk", "v"])
def test_a_dimension_of_all_heads_is_what_the_cut_of_it_removes(
    problem: Problem, space: str
) -> None:
    squares, number = weights_of(problem, space, (1, 0, 3))
    actual = mean_squares(problem.student, TINY)[space][1, :, 3].mean()
    assert actual.item() == pytest.approx(squares / number, rel=1e-3)


def test_inputs_of_q_k_and_v_together_are_the_mean_of_the_three(problem: Problem) -> None:
    squares = mean_squares(problem.student, TINY)
    torch.testing.assert_close(squares["input"], squares["input_qkv"].mean(1, keepdim=True))


def test_the_loudest_units_stay(problem: Problem) -> None:
    chosen = QUICK.choose(problem, 0)
    squares = mean_squares(problem.student, TINY)["ffn"]
    kept = torch.tensor(chosen.masks(TINY, ("ffn",))["ffn"])
    assert squares[kept].min() >= squares[~kept].max()


def test_scope_layer_keeps_equal_shares_of_the_loudest(problem: Problem) -> None:
    chosen = replace(QUICK, scope="layer").choose(problem, 0)
    assert max(chosen.ffn_per_layer) - min(chosen.ffn_per_layer) <= 1
    squares = mean_squares(problem.student, TINY)["ffn"]
    kept = torch.tensor(chosen.masks(TINY, ("ffn",))["ffn"])
    for row, mask in zip(squares, kept, strict=True):
        assert row[mask].min() >= row[~mask].max()

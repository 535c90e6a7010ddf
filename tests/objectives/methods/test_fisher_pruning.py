"""Fisher pruning after Kwon et al.: masks, swaps and factors against brute force."""

import copy
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from objectives.measures.budget import discretise
from objectives.measures.evaluate import predict
from objectives.methods.fisher_pruning import FisherPruning, rearranged
from objectives.problem import Problem
from objectives.pruning.importance import (
    fisher_blocks_of_student,
    importance_of_student,
    row_gradients,
)
from objectives.pruning.reconstruction import _factors, reconstructed
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.training.population import Population
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import RECOVER, PruningConformance, logits_of, search_alone
from tests.objectives.cut_models import RAGGED

QUICK = FisherPruning(batch_size=16, tolerance=0.1, stages=(RECOVER,))


class TestConformance(PruningConformance):
    quick = QUICK


def test_the_masks_keep_what_brute_force_keeps_but_for_a_unit(problem: Problem) -> None:
    """Every number of heads with as many neurons as then fit, the best of each kind."""
    method = replace(QUICK, rearrange=False, tolerance=0.01)
    scores, price = (
        importance_of_student(problem, QUICK.spaces, "loss"),
        problem.budget.cost.of_one_unit(),
    )
    heads, neurons = (scores[s].flatten().sort(descending=True).values for s in QUICK.spaces)
    for ratio in (0.3, 0.5, 0.7):
        budget = ratio * problem.budget.full - problem.budget.cost.fixed
        best = max(
            float(
                heads[:n].sum() + neurons[: int((budget - n * price["heads"]) / price["ffn"])].sum()
            )
            for n in range(len(heads) + 1)
            if n * price["heads"] <= budget
        )
        masks = replace(method, target_ratio=ratio).choose(problem, 0).masks(TINY, QUICK.spaces)
        kept = sum(float(scores[s][torch.tensor(masks[s])].sum()) for s in QUICK.spaces)
        assert best >= kept * (1 - 1e-6)
        assert kept >= 0.97 * best


def test_the_diagonal_of_a_block_is_the_importance(problem: Problem) -> None:
    importance = importance_of_student(problem, QUICK.spaces, "loss")
    for space, block in fisher_blocks_of_student(problem, QUICK.spaces).items():
        diagonal = block.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, importance[space], rtol=1e-4, atol=1e-12)
        torch.testing.assert_close(block, block.transpose(1, 2))


class Seen(TorchDispatchMode):
    """Keeps every tensor of one shape that an operation gives."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.shape, self.tensors = shape, []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = function(*args, **(kwargs or {}))
        if isinstance(given, torch.Tensor) and tuple(given.shape) == self.shape:
            self.tensors.append(given)
        return given


def test_blocks_are_the_mean_of_products_and_are_added_in_place(problem: Problem) -> None:
    """They are the largest thing that the method makes: there is no second one of their size."""
    fresh = replace(problem)
    with Seen((TINY.layers, TINY.ffn, TINY.ffn)) as seen:
        block = fisher_blocks_of_student(fresh, ("ffn",))["ffn"]
    assert {tensor.data_ptr() for tensor in seen.tensors} == {block.data_ptr()}

    population = Population.of([problem.student])
    masks = {"ffn": torch.ones(1, TINY.layers, TINY.ffn)}
    assert len(problem.alpha) == 64, "two batches of 32"
    expected = sum(
        torch.einsum("rli,rlj->lij", gradient, gradient) / 64
        for batch in problem.alpha.in_order(32, "cpu")
        for (gradient,) in row_gradients(population, batch, masks, "loss").values()
    )
    assert torch.equal(block, expected)


def fall(kept: torch.Tensor, fisher: torch.Tensor) -> float:
    closed = (~kept).double()
    return float(closed @ fisher.double() @ closed)


@given(
    seed=st.integers(0, 10_000),
    units=st.integers(1, 7),
    rank=st.integers(1, 7),
    keep=st.integers(0, 7),
)
def test_no_swap_of_two_units_is_better_after_the_rearrangement(
    seed: int, units: int, rank: int, keep: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(rank, units, generator=generator, dtype=torch.float64)
    fisher, kept = rows.T @ rows, torch.zeros(units, dtype=torch.bool)
    kept[: min(keep, units)] = True
    after = rearranged(kept, fisher)
    assert after.sum() == kept.sum()
    assert fall(after, fisher) <= fall(kept, fisher) + 1e-9
    for opening, closing in product((~after).nonzero(), after.nonzero()):
        other = after.clone()
        other[opening], other[closing] = True, False
        assert fall(after, fisher) <= fall(other, fisher) + 1e-9


def test_of_two_units_that_do_the_same_one_stays() -> None:
    """The first two are alike and each a little cheaper to lose than either of the others."""
    rows = torch.eye(4, dtype=torch.float64)[[0, 0, 2, 3]].T
    fisher = rows.T @ rows + 0.05 * torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0]))
    by_diagonal = torch.tensor([False, False, True, True])
    after = rearranged(by_diagonal, fisher)
    assert after[:2].sum() == 1
    best = min(
        fall(torch.tensor([unit in pair for unit in range(4)]), fisher)
        for pair in combinations(range(4), 2)
    )
    assert fall(after, fisher) == pytest.approx(best)


def test_rearranging_costs_nothing_and_lowers_the_estimate(problem: Problem) -> None:
    plain = replace(QUICK, rearrange=False).choose(problem, 0)
    after = QUICK.choose(problem, 0)
    assert after.heads_per_layer == plain.heads_per_layer
    assert after.ffn_per_layer == plain.ffn_per_layer
    blocks = fisher_blocks_of_student(problem, QUICK.spaces)
    before, now = (
        sum(
            fall(torch.tensor(row), block)
            for space, rows in chosen.masks(TINY, QUICK.spaces).items()
            for row, block in zip(rows, blocks[space], strict=True)
        )
        for chosen in (plain, after)
    )
    assert now < before


def squared_error(problem: Problem, factor: float, layer: int, block: str, unit: int) -> float:
    """Of the sum before a LayerNorm on the alpha split, with one unit's factor changed: of all
    tokens, or in the last layer of the first, the only one that the classifier reads."""
    whole, student = problem.student, copy.deepcopy(reconstructed(problem, RAGGED))
    size = TINY.head_dim if block == "attention.output" else 1
    path = f"bert.encoder.layer.{layer}.{block}"
    with torch.no_grad():
        weight = student.get_submodule(path).get_parameter("dense.weight")
        weight[:, unit * size : (unit + 1) * size] *= factor
    sums: list[list[torch.Tensor]] = [[], []]
    for model, told in zip((whole, student), sums, strict=True):
        norm = model.get_submodule(f"{path}.LayerNorm")
        hook = norm.register_forward_pre_hook(lambda _, inputs, told=told: told.append(inputs[0]))
        with torch.no_grad():
            for batch in problem.alpha.in_order(32, "cpu"):
                model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
                last = layer == TINY.layers - 1
                told[-1] = told[-1][:, 0] if last else told[-1][batch.attention_mask]
        hook.remove()
    return sum(float((a - b).square().sum()) for a, b in zip(*sums, strict=True))


@pytest.mark.parametrize(
    ("layer", "block", "unit"),
    [(0, "attention.output", 2), (1, "output", 3), (2, "attention.output", 3), (2, "output", 5)],
)
def test_no_other_factor_of_a_unit_comes_nearer(
    problem: Problem, layer: int, block: str, unit: int
) -> None:
    """The error, with the damping that a factor's own distance from 1 costs, is a parabola in the
    factor of one unit; the factor that was found lies at its foot. Heads are made loud, so that
    what is cut of them is missed."""
    student = copy.deepcopy(problem.student)
    with torch.no_grad():
        for own in student.bert.encoder.layer:
            own.attention.output.dense.weight *= 20
    problem = replace(problem, student=student)
    size = TINY.head_dim if block == "attention.output" else 1
    name = f"bert.encoder.layer.{layer}.{block}.dense.weight"
    columns = slice(unit * size, (unit + 1) * size)
    found, plain = (
        model.get_parameter(name)[:, columns]
        for model in (reconstructed(problem, RAGGED), problem.student)
    )
    factor = float((found / plain).median())
    torch.testing.assert_close(found, factor * plain)
    assert abs(factor - 1) > 0.01, "a unit that needs no factor tells nothing"

    def error(times: float) -> float:
        return squared_error(problem, times, layer, block, unit) + (times * factor - 1) ** 2

    left, middle, right = error(0.9), error(1.0), error(1.1)
    foot = 1 + 0.1 * (left - right) / (2 * (left + right - 2 * middle))
    assert foot == pytest.approx(1, abs=0.1 * abs(factor - 1))


def test_factors_are_damped_least_squares() -> None:
    """Against the columns written out: three units of two dimensions, seven tokens."""
    generator = torch.Generator().manual_seed(0)
    own, lacks, left = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((7, 6), (7, 5), (5, 6))
    )
    columns = torch.stack(
        [(own[:, u : u + 2] @ left[:, u : u + 2].T).flatten() for u in (0, 2, 4)], dim=1
    )
    damped = torch.cat([columns, torch.eye(3, dtype=torch.float64)])
    wanted = torch.cat([lacks.flatten(), torch.zeros(3, dtype=torch.float64)])
    expected = 1 + torch.linalg.lstsq(damped, wanted[:, None]).solution[:, 0]

    def factors(scale: float) -> torch.Tensor:
        towards = ((scale * lacks @ left) * own).sum(0)
        return _factors((own.T @ own) * (left.T @ left), towards, 3)

    torch.testing.assert_close(factors(1.0), expected)
    assert factors(1000.0).tolist() == [1, 1, 1], "one beyond 10 leaves the block as it was"


def test_a_reconstructed_student_cut_is_the_same_and_nearer_to_the_teacher(
    problem: Problem,
) -> None:
    student, chosen = problem.student, replace(QUICK, target_ratio=0.6).choose(problem, 0)
    state = reconstructed(problem, chosen)
    rebuilt = cut(state.state_dict(), student.config, chosen)
    bare = cut(student.state_dict(), student.config, chosen)
    whole, masked, close, far = (
        predict(model, problem.alpha, "cpu") for model in (student, state, rebuilt, bare)
    )
    torch.testing.assert_close(masked, close, atol=1e-5, rtol=1e-5)
    assert (close - whole).norm() < (far - whole).norm()


def test_the_text_goes_through_the_unpruned_model_once(problem: Problem) -> None:
    entered: Counter[str] = Counter()

    def note(module: nn.Module, *_: object) -> None:
        entered.update(name for name, own in blocks.items() if module is own)  # not of its copy

    names = ("bert.embeddings", *(f"bert.encoder.layer.{n}.intermediate" for n in range(3)))
    blocks = {name: problem.student.get_submodule(name) for name in names}
    hooks = [block.register_forward_hook(note) for block in blocks.values()]
    reconstructed(problem, RAGGED)
    for hook in hooks:
        hook.remove()
    assert entered == dict.fromkeys(names, -(-len(problem.alpha) // 32))


def test_nothing_is_scaled_where_nothing_is_cut(problem: Problem) -> None:
    state = reconstructed(problem, BertArchitecture.full(TINY)).state_dict()
    for name, value in problem.student.state_dict().items():
        torch.testing.assert_close(state[name], value, atol=1e-6, rtol=1e-4)


def test_without_rearranging_it_ranks_as_the_search_does(problem: Problem) -> None:
    scores, price = (
        importance_of_student(problem, QUICK.spaces, "loss"),
        problem.budget.cost.of_one_unit(),
    )
    expected = discretise(
        {space: value / price[space] for space, value in scores.items()},
        problem.budget.cost,
        target=QUICK.target_ratio * problem.budget.full,
        tolerance=QUICK.tolerance,
        threshold=torch.inf,
    )
    assert replace(QUICK, rearrange=False).choose(problem, 0) == expected


def test_a_stage_that_starts_from_the_student_keeps_the_reconstruction(problem: Problem) -> None:
    again = Stage(name="again", epochs=0.01, learning_rate=1e-9, start="student")
    method = replace(QUICK, target_ratio=0.5, reconstruct=True)
    bare, afresh = (
        search_alone(replace(method, stages=stages), problem)
        for stages in ((), (*QUICK.stages, again))
    )
    torch.testing.assert_close(logits_of(bare, problem), logits_of(afresh, problem))

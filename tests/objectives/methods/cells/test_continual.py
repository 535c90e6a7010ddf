"""What keeps weights from forgetting: its values, what it protects, and what the transposed one of
the paper's code does not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from objectives.methods.cells.cas import Anchor, block_sparsity, by_inputs, orthogonality


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_values_on_matrices_by_hand() -> None:
    change = torch.tensor([[[3.0, 0.0], [4.0, 2.0]]])  # norms of the two inputs: 5 and 2
    assert block_sparsity(change) == 7
    vector = torch.tensor([1.0, -2.0])
    assert block_sparsity(vector) == 3
    reference = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    # psi theta^T = [[3, 0], [4, 4]]
    assert orthogonality(change, reference) == pytest.approx(np.sqrt(9 + 16 + 16))
    assert orthogonality(vector, torch.tensor([3.0, 2.0])) == 5


@pytest.mark.parametrize("zero", [torch.zeros(1, 3, 4), torch.zeros(4)])
def test_no_change_costs_nothing_and_pulls_nowhere(zero: Tensor) -> None:
    change = zero.requires_grad_()
    penalty = block_sparsity(change) + orthogonality(change, torch.ones_like(change))
    penalty.backward()
    assert penalty == 0
    assert change.grad is not None
    assert not change.grad.any()


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_what_the_inputs_span_is_answered_as_before(seed: int, rank: int) -> None:
    """And the product that the paper's code makes 0 for `nn.Linear` does not do that."""
    reference = drawn(seed, 5, rank) @ drawn(seed + 1, rank, 4)
    seen = reference.T @ drawn(seed + 2, 5)  # in the row space
    by_rows = torch.linalg.pinv(reference) @ reference
    by_columns = reference @ torch.linalg.pinv(reference)
    change = drawn(seed + 3, 5, 4)
    inside = change - change @ by_rows
    assert orthogonality(inside[None], reference[None]) < 1e-9
    torch.testing.assert_close((reference + inside) @ seen, reference @ seen)
    outside = change - by_columns @ change
    assert (outside.T @ reference).abs().max() < 1e-9
    assert ((reference + outside) @ seen - reference @ seen).abs().max() > 1e-6
    assert orthogonality(outside[None], reference[None]) > 1e-6


def test_a_module_does_with_its_inputs_what_its_matrices_do() -> None:
    for groups in (1, 2, 6):
        conv = nn.Conv1d(6, 6, 3, groups=groups, bias=False, dtype=torch.float64)
        inputs = drawn(groups, 1, 6, 9)
        windows = inputs.unfold(-1, 3, 1).unflatten(1, (groups, -1)).movedim(3, 2).flatten(3)
        ours = torch.einsum("goi,bgsi->bgos", by_inputs(conv, conv.weight), windows).flatten(1, 2)
        torch.testing.assert_close(ours, conv(inputs))
    words, linear = nn.Embedding(4, 3), nn.Linear(4, 3)
    torch.testing.assert_close(by_inputs(words, words.weight)[0] @ torch.eye(4)[2], words.weight[2])
    torch.testing.assert_close(by_inputs(linear, linear.weight)[0], linear.weight)


def test_only_what_earlier_tasks_learnt_is_held_and_first_of_all_size() -> None:
    both = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    first, second = both[0].weight, both[1].weight
    sizes = sum(float(weight.detach().norm(dim=0).sum()) for weight in (first, second))
    anchored = Anchor(both, set())
    assert float(anchored.penalty(0.5, 9.0).detach()) == pytest.approx(sizes / 2)
    later = Anchor(both, {first})
    assert later.penalty(1.0, 1.0) == 0
    with torch.no_grad():
        second += 1
    assert later.penalty(1.0, 1.0) == 0
    with torch.no_grad():
        first += 1
    assert later.penalty(1.0, 0.0).detach() == pytest.approx(2 * 2**0.5)

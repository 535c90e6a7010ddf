"""Ternary weights as two binary ones: the identities, and models that keep both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from objectives.errors import UserError
from objectives.methods.binary_bert import in_halves, split
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.quantising import dense, quantised, rounded
from objectives.training.fusing import fuse, take
from objectives.training.population import Population
from tests.conftest import TINY
from tests.objectives.cut_models import Cut, cut_by_masks, logits

LAYERS = TINY.layers
KINDS = ("normal", "skewed", "heavy", "one-sided", "sparse", "equal")


def drawn(seed: int, kind: str, columns: int = 37) -> Tensor:
    """Rows of a weight, float64."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(6, columns, generator=generator, dtype=torch.float64)
    return {
        "normal": normal,
        "skewed": normal.exp() - 1,
        "heavy": normal**5,
        "one-sided": (3 * normal).exp(),
        "sparse": normal * (normal > 0.5),
        "equal": torch.full_like(normal, 0.25),
    }[kind]


@given(seed=st.integers(0, 2**16), kind=st.sampled_from(KINDS), columns=st.integers(1, 60))
def test_halves_add_up_before_and_after_rounding(seed: int, kind: str, columns: int) -> None:
    weight = drawn(seed, kind, columns)
    halves = split(weight)
    latent = halves.unflatten(0, (2, -1)).sum(0)
    size = weight.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(latent / size, weight / size, rtol=0, atol=1e-12)
    binary = rounded(halves, 1).unflatten(0, (2, -1)).sum(0)
    torch.testing.assert_close(binary / size, rounded(weight, 2) / size, rtol=0, atol=1e-12)


def test_a_row_too_skewed_for_the_printed_form() -> None:
    """What becomes 0 is all positive and weighs 30, what stays 25: no share in (0, 1) is left."""
    row = torch.tensor([[5.0] * 5 + [1.0] * 30], dtype=torch.float64)
    row = torch.cat([row, -row])
    assert (rounded(row, 2) == 0).sum() == 60
    halves = split(row)
    binary = rounded(halves, 1).unflatten(0, (2, -1)).sum(0)
    torch.testing.assert_close(binary, rounded(row, 2), rtol=0, atol=1e-12)
    torch.testing.assert_close(halves.unflatten(0, (2, -1)).sum(0), row)


def test_the_share_as_printed_splits_into_something_else() -> None:
    """With S_J and S_K in each other's place the two scales differ, and no zero stays one."""
    row = drawn(0, "skewed")[:1]
    stays = rounded(row, 2) != 0
    sums = [(row.abs() * part).sum() for part in (stays, ~stays & (row > 0), ~stays & (row <= 0))]
    printed = (sums[0] + sums[1] - sums[2]) / (2 * sums[0])
    first, second = split(row)
    wrong = [
        torch.where(stays[0], share * row[0], half)
        for share, half in ((printed, first), (1 - printed, second))
    ]
    found = rounded(torch.stack(wrong), 1).sum(0)
    assert (found - rounded(row, 2)[0]).abs().max() > 1e-3


@pytest.fixture(scope="module")
def model(problem: Problem) -> Cut:
    return cut_by_masks(problem)


def with_halves(
    units: BertArchitecture, halves: tuple[int | None, ...], embeddings: int = 2
) -> BertArchitecture:
    """In binary weights, some layers in two of them."""
    binary = units.with_bits([1] * LAYERS, [8] * LAYERS, embeddings)
    layers = zip(binary.layers, halves, strict=True)
    return replace(binary, layers=tuple(replace(layer, halves=own) for layer, own in layers))


def test_a_split_model_answers_as_the_ternary_one(model: Cut, problem: Problem) -> None:
    units, whole = model
    ternary = quantised(whole, units.with_bits([2] * LAYERS, [8] * LAYERS, 32))
    architecture = with_halves(units, (2, 2, 2), 32)
    halves = in_halves(whole, architecture)
    binary = quantised(halves, architecture)
    expected = logits(ternary, problem)
    torch.testing.assert_close(logits(binary, problem), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(logits(dense(binary), problem), logits(dense(ternary), problem))
    population = replace(Population.of([halves]), rounding=(architecture,))
    batch = problem.alpha.batch(np.arange(8), "cpu")
    trained = population.logits(batch)[0].detach()
    torch.testing.assert_close(trained, logits(binary, problem), atol=1e-3, rtol=0)
    assert whole.state_dict()["bert.pooler.dense.weight"].shape == (TINY.hidden, TINY.hidden)


def test_a_layer_may_be_split_alone_and_loads_with_transformers(
    model: Cut,
    problem: Problem,
    tmp_path: Path,
) -> None:
    units, whole = model
    architecture = with_halves(units, (None, 2, None))
    assert architecture.pooler_halves == 2
    assert architecture.sizes()["weight_bits"] == (1, 2, 1)
    assert BertArchitecture.from_json(architecture.to_json()) == architecture
    with pytest.raises(UserError, match="layer 0 has bits or ranks of its own"):
        architecture.check(TINY)
    packed = quantised(in_halves(whole, architecture), architecture)
    packed.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, problem), logits(packed, problem))
    assert not architecture.with_bits([32] * LAYERS, [32] * LAYERS, 32).has_bits
    architecture.with_bits([32] * LAYERS, [32] * LAYERS, 32).check(TINY)


def test_halves_are_padded_one_by_one(
    model: Cut,
) -> None:
    """As a GPU pads them; without the padding they are what they were."""
    units, whole = model
    halves = in_halves(whole, with_halves(units, (2, 2, 2)))
    state = {n: v for n, v in halves.state_dict().items() if "embeddings" not in n}
    own, wide = units.widths(TINY), BertArchitecture.full(TINY).widths(TINY)
    weights, reads = fuse([state], [own], wide, TINY.hidden)
    padded = weights["bert.encoder.layer.1.intermediate.dense.weight"][0]
    assert padded.shape == (2 * TINY.ffn, TINY.hidden)
    lower = state["bert.encoder.layer.1.intermediate.dense.weight"][units.widths(TINY)[1].ffn :]
    assert torch.equal(padded[TINY.ffn :][: len(lower)], lower)
    back = take(weights, reads, own, wide, 0, TINY.hidden)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], value) for name, value in state.items())

"""Weights of few bits: what the quantisers promise, and models that keep them packed."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.packing import (
    LARGEST,
    WEIGHT_BITS,
    PackedEmbedding,
    PackedLinear,
    pack,
    rounded_inputs,
    unpack,
)
from objectives.students.bert.quantising import codes_of, dense, keep_pieces, quantised, rounded
from tests.conftest import TINY
from tests.objectives.cut_models import Cut, cut_by_masks, logits

LAYERS = TINY.layers
seeds = st.integers(0, 2**16)
some_bits = st.sampled_from(WEIGHT_BITS)


def weights(seed: int, rows: int = 5, columns: int = 37, heavy: bool = False) -> Tensor:
    drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return drawn**3 if heavy else drawn


@given(seed=seeds, bits=some_bits, columns=st.integers(1, 40))
def test_codes_come_back_out_of_their_bytes(seed: int, bits: int, columns: int) -> None:
    codes, _ = codes_of(weights(seed, columns=columns), bits)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, -(-columns * bits // 8))
    assert torch.equal(unpack(packed, bits, columns), codes)


@given(seed=seeds, bits=st.sampled_from([8, 4]), heavy=st.booleans())
def test_a_weight_is_off_by_half_a_step_at_most(seed: int, bits: int, heavy: bool) -> None:
    """Below the largest code; with 8 bits that is everywhere."""
    weight = weights(seed, heavy=heavy)
    codes, scale = codes_of(weight, bits)
    assert codes.abs().amax() <= LARGEST[bits]
    off = (weight - codes * scale).abs()
    below = weight.abs() <= LARGEST[bits] * scale * (1 + 1e-5)
    assert bits == 4 or below.all()
    assert (off[below] <= (scale / 2 * (1 + 1e-5)).expand_as(off)[below]).all()


@given(seed=seeds, heavy=st.booleans())
def test_4_bits_leave_each_row_the_least_error_of_three_scales(seed: int, heavy: bool) -> None:
    weight = weights(seed, heavy=heavy, columns=200)
    errors = []
    for share in (1.0, 0.8, 0.6):
        scale = share * weight.abs().amax(-1, keepdim=True) / 7
        near = (weight / scale).round().clamp(-7, 7) * scale
        errors.append((weight - near).square().sum(-1))
    found = (weight - rounded(weight, 4)).square().sum(-1)
    torch.testing.assert_close(found, torch.stack(errors).amin(0))
    # Of heavy tails the largest scale may be the best of every row.
    assert heavy or (found < errors[0]).any()


@given(seed=seeds, heavy=st.booleans())
def test_8_2_and_1_bits_are_their_formulas(seed: int, heavy: bool) -> None:
    """Written out in numpy, a row at a time."""
    weight = weights(seed, heavy=heavy)
    for row, *found in zip(weight.numpy(), *(rounded(weight, b) for b in (8, 2, 1)), strict=True):
        size = abs(row)
        step, large = size.max() / 127, size > 0.7 * size.mean()
        by_hand = (
            step * np.round(row / step),
            np.where(large, np.sign(row) * size[large].mean(), 0),
            size.mean() * np.sign(row),
        )
        for own, wanted in zip(found, by_hand, strict=True):
            np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-5, atol=1e-6)


@given(seed=seeds, bits=some_bits, heavy=st.booleans())
def test_rounding_twice_is_rounding_once(seed: int, bits: int, heavy: bool) -> None:
    once = rounded(weights(seed, heavy=heavy), bits)
    torch.testing.assert_close(rounded(once, bits), once)


@given(seed=seeds, bits=st.sampled_from([8, 4]), shift=st.sampled_from([-3.0, 0.0, 0.5, 3.0]))
def test_rounding_inputs_twice_is_rounding_them_once(seed: int, bits: int, shift: float) -> None:
    once = rounded_inputs(weights(seed) + shift, bits)
    torch.testing.assert_close(rounded_inputs(once, bits), once)


@pytest.mark.parametrize("bits", WEIGHT_BITS)
def test_columns_that_only_pad_change_nothing(bits: int) -> None:
    weight = weights(0)
    padded = torch.nn.functional.pad(weight, (0, 11))
    expected = torch.nn.functional.pad(rounded(weight, bits), (0, 11))
    torch.testing.assert_close(rounded(padded, bits), expected)
    assert not rounded(torch.zeros(3, 4), bits).any()


@given(seed=seeds, bits=st.sampled_from([8, 4]))
def test_inputs_lie_on_a_grid_that_holds_0(seed: int, bits: int) -> None:
    vectors = weights(seed) + 0.5
    vectors[:, 3] = 0
    found = rounded_inputs(vectors, bits)
    assert not found[:, 3].any()
    ends = [vectors.amax(-1).clamp_min(0), vectors.amin(-1).clamp_max(0)]
    step = (ends[0] - ends[1]) / (2**bits - 1)
    assert ((found - vectors).abs().amax(-1) <= step * (1 + 1e-4)).all()
    assert all(len(row.unique()) <= 2**bits for row in found)
    assert not rounded_inputs(torch.zeros(2, 3), bits).any()


@pytest.fixture(scope="module")
def model(problem: Problem) -> Cut:
    return cut_by_masks(problem)


@pytest.mark.parametrize("bits", WEIGHT_BITS)
def test_a_packed_model_computes_with_its_rounded_weights(
    model: Cut, problem: Problem, bits: int
) -> None:
    units, whole = model
    packed = quantised(whole, units.with_bits([bits] * LAYERS, [32] * LAYERS, bits))
    by_hand = copy.deepcopy(whole)
    touched = 0
    for name, weight in by_hand.named_parameters():
        inside = weight.ndim == 2 and "classifier" not in name and "token_type" not in name
        if inside and weight.numel():
            weight.data = rounded(weight.data, bits)
            touched += 1
    kinds = [isinstance(m, PackedLinear | PackedEmbedding) for m in packed.modules()]
    assert sum(kinds) == touched > 12
    torch.testing.assert_close(logits(packed, problem), logits(by_hand, problem))
    torch.testing.assert_close(logits(dense(packed), problem), logits(packed, problem))
    assert not torch.allclose(logits(packed, problem), logits(whole, problem), atol=1e-6)


def test_layers_may_have_bits_of_their_own(model: Cut, problem: Problem) -> None:
    units, whole = model
    mixed = units.with_bits([32, 4, 8], [8, 8, 32], 32)
    assert [layer.input_bits for layer in mixed.layers] == [None, 8, None]
    assert mixed.pooler_bits is None
    assert mixed.sizes()["weight_bits"] == (32, 4, 8)
    assert BertArchitecture.from_json(mixed.to_json()) == mixed
    packed = quantised(whole, mixed)
    assert {m.bits for m in packed.modules() if isinstance(m, PackedLinear)} == {4, 8}
    assert quantised(whole, units) is whole
    assert not torch.allclose(logits(packed, problem), logits(dense(packed), problem), atol=1e-6)


def test_it_loads_with_transformers(
    model: Cut,
    problem: Problem,
    tmp_path: Path,
) -> None:
    units, whole = model
    packed = quantised(whole, units.with_bits([2, 1, 4], [8, 4, 32], 4))
    packed.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, problem), logits(packed, problem))


def test_pieces_that_stay_mean_what_they_did(model: Cut, problem: Problem) -> None:
    smaller = copy.deepcopy(model[1])
    kept = [0, 2, 3, 5, 7, 8, 11]
    keep_pieces(smaller, kept)
    new = torch.tensor([[1, 3, 4, 2], [1, 6, 5, 2]])
    with torch.no_grad():
        one = smaller(input_ids=new).logits
        other = model[1](input_ids=torch.tensor(kept)[new]).logits
    assert torch.equal(one, other)
    assert smaller.config.vocab_size == len(smaller.get_input_embeddings().weight) == 7


def test_an_added_token_without_an_embedding_may_stay(model: Cut) -> None:
    smaller = copy.deepcopy(model[1])
    keep_pieces(smaller, [0, 2, smaller.config.vocab_size])
    words = smaller.get_input_embeddings().weight
    assert torch.equal(words[1], model[1].get_input_embeddings().weight[2])
    assert not words[2].any()

"""FLOPs in closed form: exact as torch counts and as hands do, expected as exact."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.architecture import Architecture, BertShape, LayerUnits
from objectives.cost import Flops
from objectives.problem import Problem
from objectives.pruned_bert import cut
from tests.conftest import TINY
from tests.objectives.conformance import counted_flops
from tests.objectives.strategies import architectures, shapes

BERT_BASE = BertShape(layers=12, hidden=768, heads=12, head_dim=64, ffn=3072, labels=2)
TINYBERT_4L = BertShape(layers=4, hidden=312, heads=12, head_dim=26, ffn=1200, labels=2)

EMPTY = Architecture((LayerUnits((), ()),) * TINY.layers)
RAGGED = Architecture(
    (LayerUnits((), (0, 9, 47)), LayerUnits((1, 3), ()), LayerUnits((0, 1, 2), tuple(range(20))))
)


def masks_of(architecture: Architecture, shape: BertShape) -> dict[str, torch.Tensor]:
    """Masks of 0 and 1, (1, layers, units)."""
    masks = {
        "heads": torch.zeros(1, shape.layers, shape.heads),
        "ffn": torch.zeros(1, shape.layers, shape.ffn),
    }
    for number, layer in enumerate(architecture.layers):
        masks["heads"][0, number, list(layer.heads)] = 1
        masks["ffn"][0, number, list(layer.ffn)] = 1
    return masks


@given(st.data(), shapes, st.integers(1, 512))
def test_expected_is_exact_where_every_mask_is_0_or_1(
    data: st.DataObject, shape: BertShape, seq_len: int
) -> None:
    cost = Flops(shape, seq_len)
    drawn = [data.draw(architectures(shape)) for _ in range(2)]
    masks = [masks_of(architecture, shape) for architecture in drawn]
    both = {space: torch.cat([m[space] for m in masks]) for space in ("heads", "ffn")}
    assert [int(e) for e in cost.expected(both).tolist()] == [cost.exact(a) for a in drawn]


@given(st.data(), shapes, st.integers(1, 512))
def test_a_space_without_masks_is_open(data: st.DataObject, shape: BertShape, seq_len: int) -> None:
    cost, masks = Flops(shape, seq_len), masks_of(data.draw(architectures(shape)), shape)
    for space in masks:
        others_open = {name: torch.ones_like(mask) for name, mask in masks.items()}
        whole = cost.expected({**others_open, space: masks[space]})
        assert torch.equal(cost.expected({space: masks[space]}), whole)


@given(shapes, st.integers(1, 512))
def test_one_unit_costs_what_the_full_model_loses_without_it(
    shape: BertShape, seq_len: int
) -> None:
    cost = Flops(shape, seq_len)
    full = Architecture.full(shape)
    first, *others = full.layers
    less = {
        "heads": LayerUnits(first.heads[1:], first.ffn),
        "ffn": LayerUnits(first.heads, first.ffn[1:]),
    }
    for space, layer in less.items():
        saved = cost.full - cost.exact(Architecture((layer, *others)))
        assert saved == cost.of_one_unit()[space]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("seq_len", [1, 7, 24, 64])
@pytest.mark.parametrize(
    "architecture",
    [Architecture.full(TINY), RAGGED, EMPTY],
    ids=["full", "ragged", "empty"],
)
def test_exact_is_what_torch_counts_on_the_cut_model(
    problem: Problem, architecture: Architecture, seq_len: int, attention: str
) -> None:
    config = copy.deepcopy(problem.student.config)
    config._attn_implementation = attention
    model = cut(problem.student.state_dict(), config, architecture)
    assert counted_flops(model, seq_len) == Flops(TINY, seq_len).exact(architecture)


@settings(max_examples=10)
@given(architectures(TINY), st.integers(1, 64))
def test_exact_is_what_torch_counts_on_any_cut_model(
    problem: Problem, architecture: Architecture, seq_len: int
) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, architecture)
    assert counted_flops(model, seq_len) == Flops(TINY, seq_len).exact(architecture)


def test_bert_base_at_128_by_hand() -> None:
    projections = 4 * 768 * 768  # Q, K, V and the output, for each token
    feed_forward = 2 * 768 * 3072
    attention = 2 * 128 * 128 * 768  # Q K^T, and attention times V
    layer = 128 * (projections + feed_forward) + attention
    assert layer == 931_135_488
    classifier = 768 * 768 + 768 * 2  # pooler and classifier, at one position
    assert Flops(BERT_BASE, 128).full == 2 * (12 * layer + classifier) == 22_348_434_432


def test_tinybert_4l_312d_at_128_by_hand() -> None:
    layer = 128 * (4 * 312 * 312 + 2 * 312 * 1200) + 2 * 128 * 128 * 312
    macs = 4 * layer + 312 * 312 + 312 * 2
    assert macs == 623_738_544
    cost = Flops(TINYBERT_4L, 128)
    assert cost.full == 2 * macs
    one_head = 128 * 4 * 312 * 26 + 2 * 128 * 128 * 26
    assert one_head == 5_005_312
    assert cost.of_one_unit() == {"heads": 2 * one_head, "ffn": 2 * 128 * 2 * 312}


def test_a_cost_names_its_unit_with_the_length() -> None:
    assert Flops(TINY, 48).unit == "flops@48"

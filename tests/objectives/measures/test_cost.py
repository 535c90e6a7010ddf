"""FLOPs in closed form: exact as torch counts and as hands do, expected as exact."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.measures.cost import Cost, Flops, Params, Units
from objectives.measures.evaluate import count_parameters
from objectives.problem import Problem
from objectives.students.bert.architecture import (
    SPACES,
    BertArchitecture,
    BertShape,
    LayerUnits,
    units_of,
)
from objectives.students.bert.cutting import cut
from tests.conftest import TINY
from tests.objectives.conformance import counted_flops
from tests.objectives.hypothesis_strategies import (
    EACH_COMBINATION,
    architectures,
    masks_of,
    shapes,
)

BERT_BASE = BertShape(layers=12, hidden=768, heads=12, head_dim=64, ffn=3072, labels=2)
TINYBERT_4L = BertShape(layers=4, hidden=312, heads=12, head_dim=26, ffn=1200, labels=2)

EMPTY = BertArchitecture((LayerUnits((), ()),) * TINY.layers)


def costs(shape: BertShape, seq_len: int, spaces: tuple[str, ...]) -> list[Cost]:
    return [
        Flops(shape, seq_len),
        Params(shape, embeddings=1000, vocabulary=30),
        Units(shape, spaces),
    ]


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=10)
@given(data=st.data(), shape=shapes, seq_len=st.integers(1, 512))
def test_expected_is_exact_where_every_mask_is_0_or_1(
    data: st.DataObject, shape: BertShape, seq_len: int, spaces: tuple[str, ...]
) -> None:
    drawn = [data.draw(architectures(shape, spaces)) for _ in range(2)]
    masks = [masks_of(architecture, shape, spaces) for architecture in drawn]
    both = {space: torch.cat([m[space] for m in masks]) for space in spaces}
    for cost in costs(shape, seq_len, spaces):
        assert [int(e) for e in cost.expected(both).tolist()] == [cost.exact(a) for a in drawn]


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**16), shape=shapes, seq_len=st.integers(1, 512))
def test_a_unit_that_closes_never_costs_more(
    seed: int, shape: BertShape, seq_len: int, spaces: tuple[str, ...]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = {
        space: torch.rand(1, shape.layers, *units_of(shape, space), generator=generator)
        for space in spaces
    }
    for mask in masks.values():
        mask.requires_grad_()
    for cost in costs(shape, seq_len, spaces):
        slopes = torch.autograd.grad(cost.expected(masks).sum(), list(masks.values()))
        assert all((slope >= 0).all() for slope in slopes)
        assert any((slope > 0).any() for slope in slopes)


@given(st.data(), shapes, st.integers(1, 512))
def test_a_space_without_masks_is_open(data: st.DataObject, shape: BertShape, seq_len: int) -> None:
    spaces = tuple(space for space in SPACES if space != "input")
    masks = masks_of(data.draw(architectures(shape, spaces)), shape, spaces)
    for cost in costs(shape, seq_len, spaces):
        for space in masks:
            others_open = {name: torch.ones_like(mask) for name, mask in masks.items()}
            whole = cost.expected({**others_open, space: masks[space]})
            alone = cost.expected({space: masks[space]})
            assert torch.equal(alone, whole)
            assert alone.dtype == torch.float64


@given(shapes, st.integers(1, 512))
def test_one_unit_costs_what_the_full_model_loses_without_it(
    shape: BertShape, seq_len: int
) -> None:
    prices = Flops(shape, seq_len).of_one_unit()
    hidden, heads, head_dim = shape.hidden, shape.heads, shape.head_dim
    assert prices["ffn"] == 2 * seq_len * 2 * hidden
    assert prices["qk"] == 2 * (seq_len * 2 * hidden + seq_len**2)
    assert prices["v"] == 2 * (seq_len * 2 * hidden + seq_len**2)
    assert prices["heads"] == head_dim * (prices["qk"] + prices["v"])
    assert prices["input_qkv"] == 2 * seq_len * heads * head_dim
    assert prices["input"] == 3 * prices["input_qkv"]


@given(shapes, st.data())
def test_an_expected_cost_is_that_of_the_sums_of_the_masks(
    shape: BertShape, data: st.DataObject
) -> None:
    """By hand, where all masks of a space are the same number."""
    share = st.integers(1, 8).map(lambda eighths: eighths / 8)
    heads, qk, v, query, key, value, ffn = (data.draw(share) for _ in range(7))
    masks = {
        space: torch.full((1, shape.layers, *units_of(shape, space)), mask, dtype=torch.float64)
        for space, mask in (("heads", heads), ("qk", qk), ("v", v), ("ffn", ffn))
    }
    inputs = torch.tensor([query, key, value], dtype=torch.float64)
    masks["input_qkv"] = inputs[:, None].expand(1, shape.layers, 3, shape.hidden)
    s, d, width = 7, shape.hidden, heads * shape.heads * shape.head_dim
    projections = s * d * width * (qk * query + qk * key + v * value)
    attention = s * s * width * (qk + v)
    layer = projections + attention + s * d * width * v + 2 * s * d * ffn * shape.ffn
    macs = shape.layers * layer + d * (d + shape.labels)
    assert Flops(shape, s).expected(masks).item() == pytest.approx(2 * macs, rel=1e-12)


def test_the_gradient_of_an_expected_cost_agrees_with_finite_differences() -> None:
    shape = BertShape(layers=2, hidden=5, heads=2, head_dim=3, ffn=4, labels=2)
    generator = torch.Generator().manual_seed(0)
    spaces = [space for space in SPACES if space != "input"]
    masks = [
        torch.rand(2, 2, *units_of(shape, space), generator=generator, dtype=torch.float64)
        for space in spaces
    ]
    for cost in costs(shape, 7, tuple(spaces)):
        torch.autograd.gradcheck(
            lambda *masks, cost=cost: cost.expected(dict(zip(spaces, masks, strict=True))),
            [mask.requires_grad_() for mask in masks],
        )


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=4)
@given(data=st.data(), seq_len=st.integers(1, 64))
def test_exact_is_what_is_counted_on_any_cut_model(
    problem: Problem, data: st.DataObject, spaces: tuple[str, ...], seq_len: int
) -> None:
    architecture = data.draw(architectures(TINY, spaces))
    model = cut(problem.student.state_dict(), problem.student.config, architecture)
    embeddings = sum(p.numel() for p in model.get_submodule("bert.embeddings").parameters())
    assert counted_flops(model, seq_len) == Flops(TINY, seq_len).exact(architecture)
    assert count_parameters(model) == Params(TINY, embeddings, 0).exact(architecture)


def test_bert_base_at_128_by_hand() -> None:
    projections = 4 * 768 * 768  # Q, K, V and the output, for each token
    feed_forward = 2 * 768 * 3072
    attention = 2 * 128 * 128 * 768  # Q K^T, and attention times V
    layer = 128 * (projections + feed_forward) + attention
    assert layer == 931_135_488
    classifier = 768 * 768 + 768 * 2  # pooler and classifier, at one position
    assert Flops(BERT_BASE, 128).full == 2 * (12 * layer + classifier) == 22_348_434_432


@pytest.mark.parametrize(
    ("shape", "flops"),
    [
        (BERT_BASE, 22_348_619_522),
        (replace(BERT_BASE, layers=6), 11_174_901_506),
        (TINYBERT_4L, 1_247_502_170),
    ],
    ids=["BERT-base", "TinyBERT 6L-768d", "TinyBERT 4L-312d"],
)
def test_with_its_bias_terms_it_is_what_dap_bert_counts(shape: BertShape, flops: int) -> None:
    """It adds each bias once, not once a position, and that of the attention's output once a head.

    These are its published numbers at 128 tokens; the terms were found from them. No bias is in
    our cost.
    """
    hidden = shape.hidden
    layer = 3 * hidden + shape.heads * hidden + shape.ffn + hidden
    biases = shape.layers * layer + hidden + shape.labels
    assert Flops(shape, 128).full + biases == flops


@pytest.mark.parametrize(
    ("shape", "mebibytes"),
    [(BERT_BASE, 417.6), (TINYBERT_4L, 54.74)],
    ids=["BERT-base", "TinyBERT"],
)
def test_parameters_in_float32_are_as_large_as_is_published(
    shape: BertShape, mebibytes: float
) -> None:
    """30,522 words, 512 positions, two types and a norm; the tables' MB are MiB."""
    embeddings = (30_522 + 512 + 2 + 2) * shape.hidden
    digits = 1 if mebibytes > 100 else 2
    assert round(Params(shape, embeddings, 0).full * 4 / 2**20, digits) == mebibytes


def test_units_are_counted_once_and_only_where_they_are_searched() -> None:
    shape = BertShape(layers=2, hidden=8, heads=3, head_dim=4, ffn=6, labels=2)
    layer = LayerUnits((0, 2), (5,), query_key=((0, 1), (0, 3)), query_inputs=(0, 1, 2, 3, 7))
    architecture = BertArchitecture((layer, LayerUnits((), ())))
    counted = {space: Units(shape, (space,)).exact(architecture) for space in SPACES}
    of_heads = {"qk": 4, "v": 8, "input": 5, "input_qkv": 5 + 8 + 8}
    assert counted == {"heads": 2, "ffn": 1, **of_heads, "layers": 2}
    assert Units(shape, ("heads", "qk")).exact(architecture) == 6
    assert Units(shape, ("ffn", "heads")).full == 2 * (3 + 6)


@pytest.mark.parametrize("inputs", ["input", "input_qkv"])
def test_a_layer_without_heads_reads_nothing_whatever_its_inputs_masks_say(inputs: str) -> None:
    spaces = ("heads", "ffn", inputs)
    masks = masks_of(EMPTY, TINY, spaces)
    masks["heads"][:, 1, 0] = 1  # the other layers have none
    open_masks = {**masks, inputs: torch.ones_like(masks[inputs])}
    cut = BertArchitecture.from_masks(
        TINY, {space: mask[0].bool().tolist() for space, mask in open_masks.items()}
    )
    for cost in costs(TINY, 16, spaces):
        assert cost.expected(open_masks).item() == cost.exact(cut)


def test_a_cost_names_its_unit_with_what_it_depends_on() -> None:
    assert Flops(TINY, 48).unit == "flops@48"
    assert Params(TINY, 0, 0).unit == "params"
    assert Units(TINY, ("ffn", "heads")).unit == "units@heads+ffn"

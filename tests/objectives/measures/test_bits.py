"""Bytes as a file has them, and operations on bits as the tables of the sources count them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForSequenceClassification

from objectives.measures.bits import BitOps, Bytes, bytes_of
from objectives.measures.cost import Flops, Params
from objectives.measures.evaluate import count_parameters
from objectives.methods.binary_bert import in_halves
from objectives.problem import Problem
from objectives.students.bert.architecture import FULL_BITS, SPACES, BertArchitecture
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.packing import WEIGHT_BITS
from objectives.students.bert.quantising import keep_pieces, quantised
from tests.conftest import TINY
from tests.objectives.hypothesis_strategies import architectures

MIB = 2**20


def bytes_cost(model: BertForSequenceClassification) -> Bytes:
    state = model.state_dict().items()
    return Bytes(
        shape_of(model.config),
        {name: tuple(w.shape) for name, w in state if name.startswith("bert.embeddings.")},
    )


@pytest.fixture(scope="module")
def bert_base() -> BertForSequenceClassification:
    with torch.device("meta"):
        return BertForSequenceClassification(BertConfig(num_labels=2))


bits_of_layers = st.lists(
    st.sampled_from([FULL_BITS, *WEIGHT_BITS]), min_size=TINY.layers, max_size=TINY.layers
)


@settings(max_examples=25)
@given(
    units=architectures(TINY, [space for space in SPACES if space != "input_qkv"]),
    weights=bits_of_layers,
    embeddings=st.sampled_from([FULL_BITS, *WEIGHT_BITS]),
    pieces=st.none() | st.integers(6, 12),
    halves=st.lists(st.sampled_from([None, 2]), min_size=TINY.layers, max_size=TINY.layers),
)
def test_what_is_counted_is_what_lies_on_the_disk(
    units: BertArchitecture,
    weights: list[int],
    embeddings: int,
    pieces: int | None,
    halves: list[int | None],
    problem: Problem,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    student = problem.student
    model = cut(student.state_dict(), student.config, units)
    if pieces is not None:
        keep_pieces(model, list(range(pieces)))
    bits = units.with_bits(weights, [FULL_BITS] * TINY.layers, embeddings)
    layers = tuple(
        replace(units, halves=own if units.weight_bits == 1 else None)
        for units, own in zip(bits.layers, halves, strict=True)
    )
    architecture = BertArchitecture(layers, bits.embedding_bits, pieces)
    model = quantised(in_halves(model, architecture), architecture)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    on_disk = (folder / "model.safetensors").stat().st_size
    assert bytes_of(model.state_dict()) == on_disk
    assert bytes_cost(student).exact(architecture) == on_disk
    whole = sum(weight.numel() for weight in student.bert.embeddings.parameters())
    params = Params(TINY, whole, student.config.vocab_size)
    assert count_parameters(model) == params.exact(architecture)


def test_the_sizes_of_the_sources_tables(bert_base: BertForSequenceClassification) -> None:
    """BinaryBERT (Bai et al. 2021): 417.6 MiB, and 13.4 with weights of one bit."""
    cost = bytes_cost(bert_base)
    full = BertArchitecture.full(cost.shape)
    assert cost.full / MIB == pytest.approx(417.6, rel=0.001)
    assert cost.exact(full.with_bits([1] * 12, [8] * 12, 1)) / MIB == pytest.approx(13.4, rel=0.05)


def half_of_bert_base(cost: Bytes | BitOps, halves: int | None, bits: int) -> BertArchitecture:
    """Half of the heads and neurons of each layer, as BinaryBERT begins."""
    masks = {
        "heads": [[n % 2 > 0 for n in range(12)]] * 12,
        "ffn": [[n % 2 > 0 for n in range(3072)]] * 12,
    }
    units = BertArchitecture.from_masks(cost.shape, masks).with_bits([bits] * 12, [8] * 12, 2)
    return replace(units, layers=tuple(replace(layer, halves=halves) for layer in units.layers))


def test_the_sizes_of_the_sources_table_of_split_weights(
    bert_base: BertForSequenceClassification,
) -> None:
    """16.5 MiB: two binary matrices of half the width, and embeddings of two bits."""
    cost = bytes_cost(bert_base)
    split = cost.exact(half_of_bert_base(cost, halves=2, bits=1))
    assert split / MIB == pytest.approx(16.5, rel=0.05)
    assert split > cost.exact(half_of_bert_base(cost, halves=None, bits=2)) > 0.97 * split


def test_two_halves_take_the_operations_of_two_bits(
    bert_base: BertForSequenceClassification,
) -> None:
    cost = BitOps(shape_of(bert_base.config), 128)
    split, ternary = (cost.exact(half_of_bert_base(cost, *own)) for own in ((2, 1), (None, 2)))
    assert split == ternary > cost.exact(half_of_bert_base(cost, None, 1))


def test_the_operations_of_the_sources_tables(bert_base: BertForSequenceClassification) -> None:
    """22.5, 3.1 and 1.5 G; at 8 bits the source counts Q K^T and attention times V otherwise."""
    shape = shape_of(bert_base.config)
    cost, full = BitOps(shape, 128), BertArchitecture.full(shape)
    assert cost.full == Flops(shape, 128).full
    assert cost.exact(full.with_bits([1] * 12, [4] * 12, 1)) == pytest.approx(1.511e9, rel=0.001)
    assert cost.exact(full.with_bits([1] * 12, [8] * 12, 1)) == pytest.approx(3.323e9, rel=0.001)
    assert cost.exact(full.with_bits([8] * 12, [8] * 12, 8)) == cost.full
    assert cost.exact(full.with_bits([1] * 12, [32] * 12, 8)) == cost.full  # they meet in float32


def test_what_attends_has_bits_of_its_own(bert_base: BertForSequenceClassification) -> None:
    shape = shape_of(bert_base.config)
    eight = BertArchitecture.full(shape).with_bits([2] * 12, [8] * 12, 8)
    four = replace(eight, layers=tuple(replace(own, attention_bits=4) for own in eight.layers))
    cost = BitOps(shape, 128)
    products = 12 * 2 * 2 * 128 * 128 * 768  # Q K^T and attention times V, in each layer
    assert cost.exact(eight) - cost.exact(four) == products * (64 - 16) / 64

"""The discrete answer: sorted, checked, and equal after a trip through JSON."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.errors import UserError
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.linears import matmuls
from tests.conftest import TINY
from tests.objectives.hypothesis_strategies import COMBINATIONS, architectures, masks_of


@pytest.mark.parametrize("spaces", COMBINATIONS, ids="+".join)
@settings(max_examples=5)
@given(data=st.data())
def test_json_and_masks_give_back_an_equal_architecture(
    data: st.DataObject, spaces: tuple[str, ...]
) -> None:
    architecture = data.draw(architectures(TINY, spaces))
    architecture.check(TINY)
    text = architecture.to_json()
    assert "\n" not in text
    assert BertArchitecture.from_json(text) == architecture
    masks = {space: m[0].tolist() for space, m in masks_of(architecture, TINY, spaces).items()}
    assert BertArchitecture.from_masks(TINY, masks) == architecture
    assert architecture.masks(TINY, spaces) == masks


@given(architectures(TINY, ("heads", "ffn", "qk", "v", "input_qkv", "layers")))
def test_widths_count_the_masks(architecture: BertArchitecture) -> None:
    spaces = ("heads", "ffn", "qk", "v", "input_qkv", "layers")
    masks = masks_of(architecture, TINY, spaces)
    heads, ffn, qk, v, inputs, layers = (masks[space][0] for space in spaces)
    columns = (heads.sum(1), qk.sum((1, 2)), v.sum((1, 2)), *inputs.sum(2).unbind(1), ffn.sum(1))
    columns = (*columns, layers[:, 0])
    counted = list(zip(*(column.int().tolist() for column in columns), strict=True))
    assert [tuple(widths) for widths in architecture.widths(TINY)] == counted
    assert architecture.heads_per_layer == tuple(row[0] for row in counted)
    assert architecture.ffn_per_layer == tuple(row[-2] for row in counted)


def test_sizes_are_those_of_the_layers_that_are_left() -> None:
    layer = {"heads": [True, False, True, False], "ffn": [True] * 5 + [False] * 43}
    masks = {space: [mask] * TINY.layers for space, mask in layer.items()}
    found = BertArchitecture.from_masks(TINY, masks)
    sizes = dict(heads=2, query_key=16, value=16, query_inputs=32, key_inputs=32, value_inputs=32)
    assert found.sizes() == {name: (n,) * TINY.layers for name, n in {**sizes, "ffn": 5}.items()}
    read = BertArchitecture.from_json(found.to_json())
    assert read == found
    assert read.sizes() == {"heads": (2, 2, 2), "ffn": (5, 5, 5)}


def test_a_layer_that_is_dropped_keeps_nothing_and_is_said_only_where_there_is_one() -> None:
    whole = BertArchitecture.full(TINY)
    assert "dropped" not in whole.to_json()
    gone = LayerUnits((), (), dropped=True)
    shallow = BertArchitecture((whole.layers[0], gone, whole.layers[2]))
    assert BertArchitecture.from_json(shallow.to_json()).layers[1].dropped is True
    assert shallow.sizes() == {"heads": (4, 0, 4), "ffn": (48, 0, 48), "layers": (1, 0, 1)}
    assert shallow != BertArchitecture((whole.layers[0], LayerUnits((), ()), whole.layers[2]))
    with pytest.raises(UserError, match="a layer is dropped, but keeps 1 heads and 0 FFN neurons"):
        LayerUnits((0,), (), dropped=True)


def test_bits_are_kept_and_nothing_is_cut_to_them() -> None:
    full = BertArchitecture.full(TINY)
    for name in ("weight_bits", "input_bits"):
        assert name not in full.to_json()
        some = replace(full, layers=(replace(full.layers[0], **{name: 4}), *full.layers[1:]))
        assert BertArchitecture.from_json(some.to_json()) == some != full
        assert {getattr(m, name) for m in matmuls(some, TINY, 7)} == {4, None}
        with pytest.raises(UserError, match="layer 0 has bits or ranks of its own"):
            some.check(TINY)


def test_what_is_whole_is_not_listed() -> None:
    text = '{"format": "maskfront-architecture-1", "layers": [{"heads": [0, 2], "ffn": [5]}]}'
    whole = BertArchitecture((LayerUnits(heads=(0, 2), ffn=(5,)),))
    assert whole.to_json() == text
    assert BertArchitecture.from_json(text) == whole
    assert BertArchitecture.from_json(text.replace("[5]}", '[5], "value": null}')) == whole


def test_the_full_architecture_keeps_every_unit() -> None:
    full = BertArchitecture.full(TINY)
    full.check(TINY)
    assert full.heads_per_layer == (4, 4, 4)
    assert full.ffn_per_layer == (48, 48, 48)


@pytest.mark.parametrize("units", [(1, 0), (2, 2), (-1, 0)], ids=["descending", "twice", "below 0"])
def test_indices_that_do_not_ascend_from_0_are_refused(units: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="'heads' must be ascending indices from 0"):
        LayerUnits(heads=units, ffn=())
    with pytest.raises(UserError, match="'ffn' must be ascending indices from 0"):
        LayerUnits(heads=(), ffn=units)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        '{"format": "maskfront-architecture-2", "layers": []}',
        '{"format": "maskfront-architecture-1", "layers": [[]]}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": [], "ffn": [], "f": []}]}',
        '{"format": "maskfront-architecture-1"}',
        '{"format": "maskfront-architecture-1", "layers": 3}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": [0]}]}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": [1, 0], "ffn": []}]}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": ["all"], "ffn": []}]}',
    ],
)
def test_any_other_document_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^architecture: "):
        BertArchitecture.from_json(text)


def test_heads_of_a_layer_keep_equally_many_dimensions_and_at_least_one() -> None:
    for rows in (((0, 1), (0,)), ((), ()), ((0,),)):
        with pytest.raises(UserError, match="'value' must have one row for each of the 2 heads"):
            LayerUnits((0, 3), (), value=rows)
    LayerUnits((0, 3), (), value=((0, 1), (2, 5)))


def test_q_k_and_v_read_something() -> None:
    with pytest.raises(UserError, match="'key_inputs' is"):
        LayerUnits((0, 3), (), key_inputs=())


@pytest.mark.parametrize("units", [{"query_key": ()}, {"query_inputs": ()}, {"value_inputs": (1,)}])
def test_a_layer_without_heads_has_nothing_that_belongs_to_heads(units: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"of 0 heads|each of the 0 heads"):
        LayerUnits((), (1,), **units)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"heads": (4,)}, "layer 0 keeps 'heads' unit 4, the model has 4"),
        ({"ffn": (48,)}, "layer 0 keeps 'ffn' unit 48, the model has 48"),
        ({"query_key": ((8,),)}, "layer 0 keeps 'query_key' unit 8, the model has 8"),
        ({"value_inputs": (32,)}, "layer 0 keeps 'value_inputs' unit 32, the model has 32"),
        ({"value": (tuple(range(8)),)}, "layer 0 lists all 8 units of 'value'; leave them out"),
        ({"key_inputs": tuple(range(32))}, "layer 0 lists all 32 units of 'key_inputs'"),
    ],
)
def test_units_that_the_model_lacks_or_that_are_all_of_it_are_refused(
    units: dict[str, Any], message: str
) -> None:
    first = LayerUnits(**{"heads": (1,), "ffn": (), **units})
    layers = (first, *BertArchitecture.full(TINY).layers[1:])
    with pytest.raises(UserError, match=message):
        BertArchitecture(layers).check(TINY)

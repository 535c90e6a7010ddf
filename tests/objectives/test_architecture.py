"""The discrete answer: sorted, checked, and equal after a trip through JSON."""

from __future__ import annotations

import pytest
from hypothesis import given

from objectives.architecture import Architecture, LayerUnits
from objectives.errors import UserError
from tests.conftest import TINY
from tests.objectives.strategies import architectures


@given(architectures(TINY))
def test_json_gives_back_an_equal_architecture_in_one_line(architecture: Architecture) -> None:
    text = architecture.to_json()
    assert "\n" not in text
    assert Architecture.from_json(text) == architecture


@given(architectures(TINY))
def test_masks_and_indices_say_the_same(architecture: Architecture) -> None:
    masks = [
        [[unit in getattr(layer, space) for unit in range(size)] for layer in architecture.layers]
        for space, size in (("heads", TINY.heads), ("ffn", TINY.ffn))
    ]
    assert Architecture.from_masks(*masks) == architecture
    assert architecture.heads_per_layer == tuple(sum(row) for row in masks[0])
    assert architecture.ffn_per_layer == tuple(sum(row) for row in masks[1])


def test_the_full_architecture_keeps_every_unit() -> None:
    full = Architecture.full(TINY)
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
        '{"format": "maskfront-architecture-1"}',
        '{"format": "maskfront-architecture-1", "layers": 3}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": [0]}]}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": [1, 0], "ffn": []}]}',
        '{"format": "maskfront-architecture-1", "layers": [{"heads": ["all"], "ffn": []}]}',
    ],
)
def test_any_other_document_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^architecture: "):
        Architecture.from_json(text)

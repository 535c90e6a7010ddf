"""What hypothesis draws: architectures of a shape, with empty layers among them."""

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from objectives.students.bert.architecture import SPACES, BertArchitecture, BertShape, units_of


def kept(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Some of `size` units, ascending; none and all come often."""
    some = st.sets(st.integers(0, size - 1)).map(lambda units: tuple(sorted(units)))
    return st.one_of(st.just(()), some, st.just(tuple(range(size))))


@st.composite
def architectures(
    draw: st.DrawFn, shape: BertShape, spaces: Sequence[str] = ("heads", "ffn")
) -> BertArchitecture:
    """Architectures that differ from the full one in the spaces only."""
    masks: dict[str, list[Any]] = {space: [] for space in spaces}
    for _ in range(shape.layers):
        for space in spaces:
            *rows, units = units_of(shape, space)
            if not rows:
                one = draw(kept(units))
                masks[space].append([unit in one for unit in range(units)])
                continue
            shuffled = random.Random(draw(st.integers(0, 2**16)))
            counts = [draw(st.integers(1, units)) for _ in range(rows[0])]
            if space in ("qk", "v"):
                counts = counts[:1] * rows[0]
            drawn = [shuffled.sample(range(units), count) for count in counts]
            masks[space].append([[unit in row for unit in range(units)] for row in drawn])
    return BertArchitecture.from_masks(shape, masks)


def masks_of(
    architecture: BertArchitecture, shape: BertShape, spaces: Sequence[str] = ("heads", "ffn")
) -> dict[str, Tensor]:
    """Masks of 0 and 1, (1, layers, *units_of), of the units that an architecture keeps."""
    masks = {space: torch.zeros(1, shape.layers, *units_of(shape, space)) for space in spaces}
    everything = range(max(shape.hidden, shape.head_dim))

    def listed(units: tuple[int, ...] | None, size: int) -> list[int]:
        return list(everything[:size] if units is None else units)

    for number, layer in enumerate(architecture.layers):
        for space, mask in masks.items():
            own = mask[0, number]
            if space in ("heads", "ffn"):
                own[list(getattr(layer, space))] = 1
            elif space == "layers":
                own[0] = not layer.dropped
            elif space in ("qk", "v"):
                rows = layer.query_key if space == "qk" else layer.value
                for place, head in enumerate(layer.heads):
                    own[head, listed(rows and rows[place], shape.head_dim)] = 1
            elif layer.heads:
                inputs = (layer.query_inputs, layer.key_inputs, layer.value_inputs)
                for row, units in zip(own, inputs, strict=False):
                    row[listed(units, shape.hidden)] = 1
    return masks


COMBINATIONS = [
    spaces
    for number in range(1, len(SPACES))
    for spaces in combinations(SPACES, number)
    if not {"input", "input_qkv"} <= set(spaces)
    if "layers" not in spaces or number in (1, 3, 6)
]
"""What a search may be over: everything without "layers", and some with it."""
EACH_COMBINATION = [
    pytest.param(spaces, marks=() if len(spaces) in (1, 4, 6) else pytest.mark.slow)
    for spaces in COMBINATIONS
]
"""The same as cases of a test: one kind alone and most together are quick."""

shapes = st.builds(
    BertShape,
    layers=st.integers(1, 4),
    hidden=st.integers(1, 64),
    heads=st.integers(1, 6),
    head_dim=st.integers(1, 16),
    ffn=st.integers(1, 40),
    labels=st.integers(2, 5),
)

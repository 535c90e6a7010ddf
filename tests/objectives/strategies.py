"""What hypothesis draws: architectures of a shape, with empty layers among them."""

from __future__ import annotations

from hypothesis import strategies as st

from objectives.architecture import Architecture, BertShape, LayerUnits


def kept(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Some of `size` units, ascending; none and all come often."""
    some = st.sets(st.integers(0, size - 1)).map(lambda units: tuple(sorted(units)))
    return st.one_of(st.just(()), some, st.just(tuple(range(size))))


def architectures(shape: BertShape) -> st.SearchStrategy[Architecture]:
    layer = st.builds(LayerUnits, heads=kept(shape.heads), ffn=kept(shape.ffn))
    layers = st.lists(layer, min_size=shape.layers, max_size=shape.layers)
    return layers.map(lambda drawn: Architecture(tuple(drawn)))


shapes = st.builds(
    BertShape,
    layers=st.integers(1, 4),
    hidden=st.integers(1, 64),
    heads=st.integers(1, 6),
    head_dim=st.integers(1, 16),
    ffn=st.integers(1, 40),
    labels=st.integers(2, 5),
)

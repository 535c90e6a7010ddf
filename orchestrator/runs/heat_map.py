"""A small picture of an architecture: which heads are left, and how densely FFN neurons are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from objectives.bert.architecture import BertArchitecture

_CELL = 22
_GAP = 4
_BINS = 32
"""Columns of the FFN's picture; each stands for as many neurons as share a column."""
_MARGIN = 70
_GROUND, _INK, _GONE = "#ffffff", "#222222", "#d9d9d9"
_LOW, _HIGH = (217, 217, 217), (0, 114, 178)


def draw_heat_map(
    architecture: BertArchitecture, full: Mapping[str, Sequence[int]], target: Path
) -> None:
    """Write a PNG: a row a layer, the first one at the top.

    `full` has the number of "heads" and of "ffn" neurons of each layer of the unpruned model. Blue
    is kept, grey is gone; a column of the FFN is the bluer the more of its neurons are kept.
    """
    from PIL import Image, ImageDraw  # only the process that trains draws one

    heads = max(full["heads"])
    split = _MARGIN + heads * _CELL + 2 * _GAP + 20
    width = split + _BINS * _CELL // 2 + 130
    picture = Image.new("RGB", (width, 36 + len(architecture.layers) * (_CELL + _GAP) + 8), _GROUND)
    draw = ImageDraw.Draw(picture)
    draw.text((_MARGIN, 10), "heads", fill=_INK)
    draw.text((split, 10), "FFN neurons, by number", fill=_INK)
    for number, layer in enumerate(architecture.layers):
        top = 30 + number * (_CELL + _GAP)
        draw.text((10, top + 5), f"layer {number + 1}", fill=_INK)
        for head in range(full["heads"][number]):
            left = _MARGIN + head * _CELL
            colour = _HIGH if head in layer.heads else _GONE
            draw.rectangle((left, top, left + _CELL - 3, top + _CELL - 3), fill=colour)
        for column, share in enumerate(_density(layer.ffn, full["ffn"][number])):
            left = split + column * _CELL // 2
            mixed = tuple(
                round(low + share * (high - low)) for low, high in zip(_LOW, _HIGH, strict=True)
            )
            draw.rectangle((left, top, left + _CELL // 2 - 1, top + _CELL - 3), fill=mixed)
        text = f"{len(layer.ffn):,} of {full['ffn'][number]:,}"
        draw.text((split + _BINS * _CELL // 2 + 10, top + 5), text, fill=_INK)
    picture.save(target, optimize=True)


def _density(kept: Sequence[int], total: int) -> list[float]:
    """Of each column the share of its units that are kept."""
    edges = [total * column // _BINS for column in range(_BINS + 1)]
    units = set(kept)
    return [
        sum(unit in units for unit in range(start, end)) / (end - start) if end > start else 0.0
        for start, end in pairwise(edges)
    ]

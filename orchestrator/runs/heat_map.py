"""A small picture of an architecture: how much of each layer is left, kind by kind."""

from pathlib import Path

from orchestrator.runs.sizes import Sizes, in_words, shown

_ROW, _CELL = 26, 19
_BAR, _KIND = 176, 320  # widths of a bar, and of a bar with its number
_MARGIN = 70
_GROUND, _INK, _GONE, _KEPT = "#ffffff", "#222222", "#d9d9d9", "#0072b2"


def draw_heat_map(sizes: Sizes, full: Sizes, target: Path) -> None:
    """Write a PNG: a row a layer, the first one at the top, and a bar for each kind of units.
    `full` are the sizes of the unpruned model. Blue is kept, grey is gone."""
    from PIL import Image, ImageDraw  # only the process that trains draws one

    kinds, layers = shown([sizes], full), max(map(len, sizes.values()), default=0)
    size = (_MARGIN + _KIND * len(kinds), 36 + _ROW * layers + 8)
    picture = Image.new("RGB", size, _GROUND)
    draw = ImageDraw.Draw(picture)
    for number in range(layers):
        draw.text((10, 35 + number * _ROW), f"layer {number + 1}", fill=_INK)
    for place, (kind, of_layers) in enumerate(kinds.items()):
        left = _MARGIN + place * _KIND
        draw.text((left, 10), in_words(kind), fill=_INK)
        for number, (kept, whole) in enumerate(zip(sizes[kind], of_layers, strict=False)):
            top = 30 + number * _ROW
            draw.rectangle((left, top, left + _BAR - 1, top + _CELL), fill=_GONE)
            if kept:
                long = max(round(_BAR * kept / whole), 1)  # one neuron of 1,536 is seen, too
                draw.rectangle((left, top, left + long - 1, top + _CELL), fill=_KEPT)
            draw.text((left + _BAR + 10, top + 5), f"{kept:,} of {whole:,}", fill=_INK)
    picture.save(target, optimize=True)

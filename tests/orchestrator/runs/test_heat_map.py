"""The picture of an architecture: blue where a unit is kept, grey where it is gone."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from objectives.bert.architecture import BertArchitecture, LayerUnits
from orchestrator.runs.heat_map import _GONE, _HIGH, draw_heat_map


def test_kept_heads_are_blue_and_a_closed_layer_is_grey(tmp_path: Path) -> None:
    layers = (LayerUnits((0, 2), tuple(range(64))), LayerUnits((), tuple(range(32))))
    target = tmp_path / "architecture.png"
    draw_heat_map(BertArchitecture(layers), {"heads": (4, 4), "ffn": (128, 128)}, target)
    picture = Image.open(target).convert("RGB")
    assert target.stat().st_size < 10_000

    def colour(layer: int, left: int) -> tuple[int, ...]:
        pixel = picture.getpixel((left + 3, 30 + layer * 26 + 3))
        assert isinstance(pixel, tuple)
        return pixel

    grey = tuple(int(_GONE[at : at + 2], 16) for at in (1, 3, 5))
    assert [colour(0, 70 + head * 22) for head in range(4)] == [_HIGH, grey, _HIGH, grey]
    assert [colour(1, 70 + head * 22) for head in range(4)] == [grey] * 4
    ffn = 70 + 4 * 22 + 8 + 20
    assert [colour(0, ffn + column * 11) for column in (0, 15, 16, 31)] == [_HIGH] * 2 + [grey] * 2
    assert [colour(1, ffn + column * 11) for column in (7, 8)] == [_HIGH, grey]

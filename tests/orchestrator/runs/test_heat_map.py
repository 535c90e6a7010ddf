"""The picture of an architecture: blue for the share that is kept, grey for what is gone."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageColor

from orchestrator.runs.trial_files import _GONE, _GROUND, _KEPT, draw_heat_map


def test_each_kind_has_a_bar_for_each_layer_as_long_as_what_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "architecture.png"
    sizes = {"heads": (2, 0), "gates": (96, 128), "ffn": (64, 128)}
    draw_heat_map(sizes, {"heads": (4, 4), "ffn": (128, 128), "gates": (128, 128)}, target)
    picture = Image.open(target).convert("RGB")
    assert target.stat().st_size < 10_000

    def colour(kind: int, layer: int, share: float) -> str:
        left, top = 70 + kind * 320 + int(share * 176), 30 + layer * 26
        names = {ImageColor.getrgb(name): name for name in (_GONE, _GROUND, _KEPT)}
        return names[picture.getpixel((left, top + 3))]  # type: ignore[index]

    for kind, shares in enumerate([(0.5, 0), (0.5, 1), (0.75, 1)]):
        for layer, kept in enumerate(shares):
            for share in (0.01, 0.24, 0.49, 0.51, 0.74, 0.76, 0.99):
                assert colour(kind, layer, share) == (_KEPT if share < kept else _GONE)


def test_a_single_unit_of_many_is_seen(tmp_path: Path) -> None:
    draw_heat_map({"ffn": (1, 0)}, {"ffn": (1536, 1536)}, tmp_path / "architecture.png")
    with Image.open(tmp_path / "architecture.png") as picture:
        found = [picture.convert("RGB").getpixel((70, 33 + layer * 26)) for layer in range(2)]
    assert found == [ImageColor.getrgb(_KEPT), ImageColor.getrgb(_GONE)]


def test_what_left_with_its_heads_is_not_drawn_again(tmp_path: Path) -> None:
    full = {"heads": (4,), "query_key": (32,), "query_inputs": (32,), "ffn": (8,)}
    widths = []
    for query_key, inputs in ((16, 32), (12, 32), (12, 30)):
        sizes = {"heads": (2,), "query_key": (query_key,), "query_inputs": (inputs,), "ffn": (3,)}
        draw_heat_map(sizes, full, tmp_path / "architecture.png")
        with Image.open(tmp_path / "architecture.png") as picture:
            widths.append(picture.width)
    assert widths == [70 + 320 * kinds for kinds in (2, 3, 4)]


def test_a_model_without_layers_has_an_empty_picture(tmp_path: Path) -> None:
    draw_heat_map({}, {"heads": (4,), "ffn": (8,)}, tmp_path / "architecture.png")
    with Image.open(tmp_path / "architecture.png") as picture:
        assert picture.convert("RGB").getcolors() == [
            (picture.width * picture.height, ImageColor.getrgb(_GROUND))
        ]

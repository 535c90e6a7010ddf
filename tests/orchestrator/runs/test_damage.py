"""Every file of a trial that was cut short is noticed, wherever it was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from orchestrator.errors import RunError
from orchestrator.runs.reading import damages
from orchestrator.runs.trial_files import draw_heat_map, read_curve, read_layers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a trial leaves, small."""
    architecture = BertArchitecture((LayerUnits((0, 2), (1, 3)), LayerUnits((), (0,))))
    (tmp_path / "architecture.json").write_text(architecture.to_json())
    (tmp_path / "result.json").write_text(json.dumps({"metric": 0.9}))
    (tmp_path / "curve.csv").write_text("stage,step,loss\nsearch,0,1.5\nsearch,1,1.25\n")
    full = {"heads": (4, 4), "ffn": (4, 4)}
    draw_heat_map(architecture.sizes(), full, tmp_path / "architecture.png")
    (tmp_path / "model").mkdir()
    weights = {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.int64)}
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "model" / "config.json").write_text('{"model_type": "pruned_bert"}\n')
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_is_whole_is_no_damage(folder: Path) -> None:
    assert len(files(folder)) == 6
    (folder / "._result.json").write_bytes(b"\0\5\x16\7")  # as macOS copies a folder
    assert damages(folder) == []
    (folder / "._result.json").unlink()
    for file in files(folder):
        if file.suffix != ".json" or file.parent != folder:
            file.unlink()
            assert damages(folder) == [], "deleted on purpose"


def test_a_trial_without_what_says_what_it_is_is_damaged(folder: Path) -> None:
    for name in ("result.json", "architecture.json"):
        text = (folder / name).read_text()
        (folder / name).unlink()
        assert damages(folder) == [f"{name} is gone"]
        (folder / name).write_text(text)
    assert damages(folder / "gone") == [], "all of it was deleted on purpose"


@pytest.mark.parametrize("name", ["result.json", "model/model.safetensors"])
def test_a_file_of_another_account_is_no_damage(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == folder / name:  # as root, tests may read every file
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunError, match=f"{name}' may not be read by this account"):
        damages(folder)


@pytest.mark.slow
def test_every_cut_of_every_file_is_noticed(folder: Path) -> None:
    for file in files(folder):
        whole = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        ends = len(whole.rstrip(b"\n")) if file.suffix == ".json" else len(whole)
        for length in range(ends):
            file.write_bytes(whole[:length])
            found = damages(folder)
            if file.suffix in (".csv", ".png"):
                assert found == [], "nothing is made of it"
            else:
                assert len(found) == 1, (name, length)
                assert found[0].startswith(f"{name} ")
            read_layers(folder)
            read_curve(folder)
        file.write_bytes(bytes(len(whole)))  # as some file systems leave it when power is lost
        assert len(damages(folder)) == (file.suffix not in (".csv", ".png")), name
        read_layers(folder)
        read_curve(folder)
        file.write_bytes(whole)


def test_damage_is_said_in_words(folder: Path) -> None:
    weights = folder / "model" / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-8])
    (folder / "result.json").write_text('{"metric": 0.')
    assert damages(folder) == [
        f"model/model.safetensors is cut short or not safetensors ({size - 8:,} bytes: "
        "Error while deserializing header: incomplete metadata, file not fully covered)",
        "result.json is not JSON (Expecting ',' delimiter: line 1 column 13 (char 12))",
    ]


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"lay'])
def test_an_architecture_without_layers_has_none_to_show(folder: Path, text: str) -> None:
    assert len(read_layers(folder)) == 2
    (folder / "architecture.json").write_text(text)
    assert read_layers(folder) == []

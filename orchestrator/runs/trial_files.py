"""Files of a trial: architecture, picture, result, curve, model. Reading needs no torch."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from objectives.cache import atomic_write
from objectives.errors import NonNegativeInt
from orchestrator.errors import RunError
from orchestrator.runs.answers import write_answers
from orchestrator.runs.reading import as_type, read_json
from orchestrator.runs.run_folder import ANSWERS, MODEL, link_or_copy
from orchestrator.runs.sizes import Sizes, in_words, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from objectives.metric import Logits
    from objectives.search_method import SearchResult
    from orchestrator.runs.results import TrialResult

_ROW, _CELL = 26, 19
_BAR, _KIND = 176, 320  # widths of a bar, and of a bar with its number
_MARGIN = 70
_GROUND, _INK, _GONE, _KEPT = "#ffffff", "#222222", "#d9d9d9", "#0072b2"


def draw_heat_map(sizes: Sizes, full: Sizes, target: Path) -> None:
    """Write a PNG: a row for each layer, a bar for each kind of units, blue kept, grey removed."""
    from PIL import Image, ImageDraw  # only the process that trains draws one

    kinds, layers = shown([sizes], full), max(map(len, sizes.values()), default=0)
    picture = Image.new("RGB", (_MARGIN + _KIND * len(kinds), 36 + _ROW * layers + 8), _GROUND)
    draw = ImageDraw.Draw(picture)
    for number in range(layers):
        draw.text((10, 35 + number * _ROW), f"layer {number + 1}", fill=_INK)
    for index, (kind, of_layers) in enumerate(kinds.items()):
        left = _MARGIN + index * _KIND
        draw.text((left, 10), in_words(kind), fill=_INK)
        for number, (left_of_layer, units) in enumerate(zip(sizes[kind], of_layers, strict=False)):
            top = 30 + number * _ROW
            draw.rectangle((left, top, left + _BAR - 1, top + _CELL), fill=_GONE)
            if left_of_layer:
                long = max(round(_BAR * left_of_layer / units), 1)  # one of 1,536 is seen, too
                draw.rectangle((left, top, left + long - 1, top + _CELL), fill=_KEPT)
            draw.text((left + _BAR + 10, top + 5), f"{left_of_layer:,} of {units:,}", fill=_INK)
    picture.save(target)


_ARCHITECTURE, _RESULT, _CURVE = "architecture.json", "result.json", "curve.csv"
_HEAT_MAP = "architecture.png"


class ScoredOutcome(NamedTuple):
    """Outcome of a trial on one task, scored."""

    search: SearchResult
    result: TrialResult
    answers: Mapping[str, Logits]  # on "select" and "heldout"
    tokenizer: PreTrainedTokenizerBase
    full: Sizes  # of the unpruned model


def write_trial(folder: Path, tasks: Mapping[str, ScoredOutcome]) -> None:
    """Write the folder, whole or not at all, each task at its path; "" is the study's own."""
    with atomic_write(folder) as unfinished:
        for path, task in tasks.items():
            _write(unfinished / path, task)


def _write(folder: Path, task: ScoredOutcome) -> None:
    from objectives.students.bert.exporting import save_model, save_tokenizer  # torch

    search = task.search
    folder.mkdir(parents=True)
    (folder / _ARCHITECTURE).write_text(search.architecture.to_json())
    (folder / _RESULT).write_text(task.result.to_json())
    write_answers(folder / ANSWERS, task.answers)
    with (folder / _CURVE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, dict.fromkeys(chain.from_iterable(search.curve)))
        writer.writeheader()
        writer.writerows(search.curve)
    draw_heat_map(search.architecture.sizes(), task.full, folder / _HEAT_MAP)
    save_model(search.model, folder / MODEL)
    save_tokenizer(task.tokenizer, folder / MODEL, pads_right=True)


def copy_trial(source: Path, folder: Path) -> None:
    """Copy a trial's folder for one that repeats it, atomically, with hard links if possible."""
    with atomic_write(folder) as unfinished:
        shutil.copytree(source, unfinished, copy_function=link_or_copy)


def shown_files(folder: Path) -> list[Path]:
    """Files of a trial that a dashboard shows."""
    model = (f"{MODEL}/config.json", f"{MODEL}/model.safetensors")
    return [folder / name for name in (_HEAT_MAP, _ARCHITECTURE, _RESULT, _CURVE, *model)]


def read_curve(folder: Path) -> list[dict[str, str]]:
    """Rows of a trial's learning curve, as text; empty if the file is gone."""
    if (folder / _CURVE).is_symlink() or not (folder / _CURVE).is_file():
        return []  # a stranger's link or pipe
    with (
        suppress(FileNotFoundError, csv.Error),
        (folder / _CURVE).open(newline="", encoding="utf-8", errors="replace") as file,
    ):
        # A row that is too long has its rest under None.
        return [{k: v for k, v in row.items() if k} for row in csv.DictReader(file)]
    return []


def read_layers(folder: Path) -> list[Mapping[str, tuple[int, ...]]]:
    """Heads and FFN neurons of each layer, from architecture.json; empty if it is gone or damaged
    (`damages` reports that). `BertArchitecture.from_json` would need torch."""
    file, units = folder / _ARCHITECTURE, Mapping[str, tuple[NonNegativeInt, ...]]
    with suppress(FileNotFoundError, RunError, KeyError):
        layers = as_type(Mapping[str, Any], read_json(file), str(file))["layers"]
        return [
            as_type(units, {name: layer[name] for name in ("heads", "ffn")}, str(file))
            for layer in as_type(tuple[Mapping[str, Any], ...], layers, str(file))
        ]
    return []

"""What a finished trial leaves in its folder: architecture, result, learning curve, cut model."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.run_folder import written_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from objectives.search_method import CurvePoint, SearchResult
    from orchestrator.records import TrialResult

MODEL = "model"
"""Folder of the cut model within a trial's, with tokenizer and labels, for `from_pretrained`."""


def write_trial(
    folder: Path,
    found: SearchResult,
    result: TrialResult,
    tokenizer: PreTrainedTokenizerBase,
) -> list[Path]:
    """Write the folder, whole or not at all; returns the files worth showing in a dashboard.

    Raises OSError if the disk refuses.
    """
    from safetensors import SafetensorError  # only the process that trains writes models

    with written_whole(folder) as unfinished:
        (unfinished / "architecture.json").write_text(found.architecture.to_json())
        (unfinished / "result.json").write_text(result.to_json())
        _write_curve(unfinished / "curve.csv", found.curve)
        try:
            found.model.save_pretrained(unfinished / MODEL)
        except SafetensorError as error:  # its way of saying that the disk is full
            raise OSError(f"{folder / MODEL}: {error}") from error
        tokenizer.save_pretrained(unfinished / MODEL)
    return [folder / name for name in ("architecture.json", "result.json", "curve.csv")]


def _write_curve(path: Path, curve: Sequence[CurvePoint]) -> None:
    columns = list(dict.fromkeys(name for point in curve for name in point))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(curve)

"""A tiny folder of the shape of GLUE: nine configurations, made-up sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

from tests.conftest import FILLERS, MARKERS

_COLUMNS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
}


def write_glue(
    folder: Path, *, train: int, validation: int, only: Sequence[str] = tuple(_COLUMNS)
) -> str:
    """Write the configurations as GLUE has them on the hub, the test splits left out."""
    lines = ["---", "configs:"]
    for name in only:
        held_out = ("_matched", "_mismatched") if name == "mnli" else ("",)
        lines += [f"- config_name: {name}", "  data_files:"]
        sizes = {"train": train, **{f"validation{kind}": validation for kind in held_out}}
        for seed, (split, rows) in enumerate(sizes.items()):
            (folder / name).mkdir(exist_ok=True)
            _rows(name, rows, seed).to_parquet(folder / name / f"{split}-00000-of-00001.parquet")
            lines += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return str(folder)


def _rows(name: str, count: int, seed: int) -> Dataset:
    """Distinct sentences of fillers and a marker, which decides the label; grades for stsb."""
    generator = np.random.default_rng(seed)
    markers = list(MARKERS)
    columns: dict[str, list[object]] = {column: [] for column in (*_COLUMNS[name], "label")}
    for row in range(count):
        for column in _COLUMNS[name]:
            words = generator.choice(FILLERS, size=generator.integers(5, 12)).tolist()
            columns[column].append(" ".join([markers[row % 2], *words]))
        columns["label"].append(float(row % 2 * 5) if name == "stsb" else row % 2)
    classes = ClassLabel(names=["no", "yes", "neither"] if name == "mnli" else ["no", "yes"])
    features = {column: Value("string") for column in _COLUMNS[name]}
    features["label"] = Value("float32") if name == "stsb" else classes
    return Dataset.from_dict(columns, features=Features(features))

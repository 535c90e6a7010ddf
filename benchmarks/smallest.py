"""The smallest students from text to label: words, pairs, one convolution; reader and engines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.harness import Row, print_means
from benchmarks.tasks import TEXT, Training, epochs_of, search, task_of, teacher_for, worth
from maskfront import CellSearch
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import deploy, text_to_label, texts_of
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench

BATCHES = (1, 8, 256)
READERS = {True: "dictionary", False: "tokenizers"}


class Smallest(Training):
    """How fast are the smallest students from text to label, and how good?

    `words` is a cell without an operation: numpy runs its int8. `pairs` has a table of hashed
    bigrams, too. Texts are held out; a dictionary of words reads them, or tokenizers does.
    """

    name = "smallest"
    flags = TEXT
    grid = {"steps": (4000,), "noised": (0,)}
    arms: dict[str, dict[str, Any]] = {
        "words": {"operations": ()},
        "words, 32 wide": {"operations": (), "width": 32},
        "words and pairs": {"operations": (), "bigrams": 1 << 15},
        "conv5": {"operations": ("conv5",)},
    }

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Train all arms, write each for both engines, and time all in turn."""
        asked, rows, opened = self.asked, [], []
        inputs = read_inputs(task_of(asked.task, asked.glue), teacher_for(asked.task))
        texts = texts_of(inputs, "heldout")
        for arm, settings in self.arms.items():
            epochs = epochs_of(key["steps"], bench) / (1 + key["noised"])
            method = CellSearch(epochs=epochs, noised=key["noised"], **settings)
            result = search(method, bench.problem, key["seed"])
            scores = worth(bench, result)
            metrics = {name: scores[name] for name in ("heldout", "heldout_agreement")}
            share_kept = {"heldout_kept": scores["heldout"] / bench.unpruned.heldout_metric}
            for engine in ("onnxruntime", "onnxruntime-int8"):
                for words, reader in READERS.items():
                    folder = self.scratch / "-".join(map(str, (*key.values(), arm, engine, reader)))
                    length = inputs.task.max_length
                    deploy(folder, result.model, inputs.tokenizer, engine, length, texts=texts)  # type: ignore[arg-type]
                    file = folder / "classifier.json"
                    document = json.loads(file.read_text())
                    document["stages"][0]["words"] &= words
                    file.write_text(json.dumps(document))
                    opened.append(Classifier(folder))
                    size = sum(model.stat().st_size for model in folder.glob("model*"))
                    about = {"arm": arm, "engine": engine, "reader": reader, "MB": size / 1e6}
                    rows.append({**about, **metrics, **share_kept})
        for batch in BATCHES:
            full_batches = texts[: len(texts) // batch * batch]
            times = 1000 * text_to_label(opened, full_batches, batch=batch) / batch
            for row, times_of_row in zip(rows, times.T, strict=True):
                row[f"us {batch}"] = float(np.median(times_of_row))
                row[f"us {batch}, slow"] = float(np.quantile(times_of_row, 0.95))
        return rows

    def show(self, rows: list[Row]) -> None:
        """Print microseconds a text, and what the students are worth."""
        means = {f"us {batch}": ".1f" for batch in BATCHES} | {"us 1, slow": ".1f", "MB": ".1f"}
        means |= {"heldout": ".3f", "heldout_kept": ".3f", "heldout_agreement": ".3f"}
        print_means("text to label", rows, ("task", "noised", "arm", "engine", "reader"), means)

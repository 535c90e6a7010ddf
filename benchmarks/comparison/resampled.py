"""What saved models get on the bootstrap's samples of a split, kept: for paired comparisons."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from objectives.cache import cached_array, content_key, kernel_lock
from objectives.measures.bootstrap import RESAMPLES, Floats, resampled_metrics
from objectives.measures.evaluate import predict, predictions_of
from objectives.students.bert import pretrained
from objectives.text.data import Split
from objectives.workbench.inputs import Inputs


class Resampled:
    """The metric of a saved model on each sample of a split, predicted once for each model."""

    def __init__(
        self,
        inputs: Inputs,
        *,
        kept: Path,
        device: str,
        note: Callable[[str], object] = warnings.warn,
    ):
        """`kept` is the folder where the numbers of each model stay; `note` is told of a damaged
        file there, which is made anew."""
        self._inputs, self._kept, self._device, self._note = inputs, kept, device, note
        self._splits: dict[str, Split] = {}

    def __call__(self, model: Path, role: str) -> Floats:
        """(500,): the same samples of the rows of `role` for every model."""
        task, text = self._inputs.task, self._inputs.text
        made_of = {
            "model": pretrained.fingerprint_of_weights(str(model)),
            "data": text.fingerprint,
            "role": role,
            "metric": task.metric,
            "max_length": task.max_length,
        }
        file = self._kept / f"{content_key(made_of)}.npy"
        self._kept.mkdir(parents=True, exist_ok=True)
        with kernel_lock(self._kept / ".lock"):
            return cached_array(
                file, (RESAMPLES,), np.float64, self._note, lambda: self._measured(model, role)
            )

    def _measured(self, model: Path, role: str) -> Floats:
        if role not in self._splits:
            self._splits[role] = self._inputs.split(role)
        split = self._splits[role]
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            loaded: Any = pretrained.Checkpoint(str(model)).load_classifier()
        logits = predict(loaded, split, self._device)
        answers, classes = predictions_of(logits, split), logits.shape[-1]
        return resampled_metrics(self._inputs.task.metric, split.labels, answers, classes)

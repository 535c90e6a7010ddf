"""A cell without operations as a file for numpy: rows of int8, and the head in float32."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from objectives.students.cells.cell_classifier import CellForSequenceClassification


def is_of_words(model: PreTrainedModel) -> bool:
    """Whether a model is a cell that pools its words, with nothing in between."""
    return (
        isinstance(model, CellForSequenceClassification)
        and not model.graph.nodes
        and model.join is None
    )


def write_table(model: Any, file: Path) -> None:
    """Write a cell without operations for `classify.py`."""
    first, *_ = model.types.weight
    norm, pooler, classifier = model.LayerNorm, model.pooler, model.classifier
    weights = {
        **_rounded("words", model.words.weight + first),
        **(_rounded("pairs", model.bigrams.weight) if model.bigrams else {}),
        "segments": model.types.weight - first,
        # The norm's own weights are those of the layer behind it.
        "inner": (pooler.weight * norm.weight).T,
        "inner_bias": pooler.bias + pooler.weight @ norm.bias,
        "outer": classifier.weight.T,
        "outer_bias": classifier.bias,
    }
    arrays: dict[str, Any] = {name: weight.numpy(force=True) for name, weight in weights.items()}
    np.savez(file, pooling=model.config.pooling, epsilon=norm.eps, **arrays)


def _rounded(name: str, rows: Tensor) -> dict[str, Tensor]:
    """Rows (V, D) in int8, and a scale for each, (V, 1)."""
    scales = rows.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return {name: (rows / scales).round().char(), f"{name}_scales": scales}

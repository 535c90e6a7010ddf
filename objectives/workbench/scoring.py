"""Score of a classifier: its answers in the engine that serves it, compared with the teacher's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.engines.serving import make_runnable
from objectives.measures.evaluate import (
    divergence,
    less_thresholds,
    metric_with_interval,
    predict,
    predict_with,
)
from objectives.measures.score import Score
from objectives.metric import Metric
from objectives.text.data import Split


def served_answers(
    engine: Engine, model: PreTrainedModel, splits: Mapping[str, Split], device: str
) -> dict[str, Tensor]:
    """Logits (rows, C) of each split as an engine gives them; those of float32 are torch's."""
    if BITS[engine] == FULL_BITS:
        return {role: predict(model, split, device) for role, split in splits.items()}
    with TemporaryDirectory() as scratch:
        (served,) = make_runnable(
            engine, {scratch: model}, Path(scratch), torch.get_num_threads(), device
        )
        return {role: predict_with(served.run, split) for role, split in splits.items()}


def score_of(
    answers: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    splits: Mapping[str, Split],
    metric: Metric,
    labels: Sequence[str] = (),
    **sizes: Any,
) -> Score:
    """Score answers beside the teacher's, both logits (rows, C) by role, "train" if it is there."""
    # `labels` are those that have thresholds of their own, `sizes` are fields of a `Score`.
    judged, thresholds = answers, list[float]()
    if labels:
        judged, thresholds = less_thresholds(answers, splits["select"], metric)
    worth = [
        metric_with_interval(judged[role], splits[role], metric) for role in ("select", "heldout")
    ]
    far = {role: divergence(answers[role], teacher[role], splits[role]) for role in splits}
    sizes["thresholds"] = dict(zip(labels, thresholds, strict=True))
    sizes["train_divergence"] = far.get("train")
    return Score(*worth[0], *worth[1], far["select"], far["heldout"], **sizes)

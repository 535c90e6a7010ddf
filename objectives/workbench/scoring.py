"""The score of a classifier: its answers in the engine that serves it, beside the teacher's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.engines.serving import make_runnable
from objectives.measures.bootstrap import Worth
from objectives.measures.evaluate import (
    divergence,
    less_thresholds,
    metric_with_interval,
    predict,
    predict_with,
)
from objectives.metric import Metric
from objectives.text.data import Split


@dataclass(frozen=True)
class Score(Worth):
    """Worth and costs of a classifier, measured on the model itself."""

    divergence: float
    """From the teacher on the selection split: see `measures.evaluate.divergence`."""
    heldout_divergence: float
    cost: float
    """In the unit of the study's cost."""
    flops: int
    """Whatever the study counts."""
    params: int
    bytes: int
    """Bytes of the file of its weights."""
    widths: Mapping[str, tuple[int, ...]]
    """`Architecture.sizes`: how much is left of each layer."""
    thresholds: Mapping[str, float]
    """The probability above which each label is there, by its name; none where that is 0.5."""
    train_divergence: float | None = None
    """Divergence on rows that it learnt from; None of the teacher, who did not learn from
    itself."""


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
    """Score answers beside the teacher's, both logits (rows, C) of "select", "heldout" and maybe
    "train"."""
    # `labels` are those that have thresholds of their own, `sizes` the fields of a `Score` on
    # costs.
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

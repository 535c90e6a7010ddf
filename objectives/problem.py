"""What every trial of a study shares: data, teacher, student, cost. Prepared once a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.bert import pretrained
from objectives.measures.cost import Cost
from objectives.text.data import Split


@dataclass(frozen=True, eq=False)
class Problem:
    """What a search method works on: it learns from `train` and `alpha` alone."""

    teacher: BertForSequenceClassification
    """Fine-tuned, frozen, in evaluation mode, on the device."""
    student: BertForSequenceClassification
    """Where every student starts: the teacher, some layers of it, or a checkpoint of its own."""
    train: Split
    """The train rows, then their augmented copies if the study has any."""
    teacher_logits: Tensor
    """(rows of train, C): what the teacher says of each row of `train`, on the device."""
    alpha: Split
    """The rows to choose units by."""
    cost: Cost
    """What the study counts, of the student, cut or masked."""
    cost_full: float
    """Ratio 1: that of the teacher, or of the unpruned student if it is another checkpoint."""
    seq_len: int
    """Tokens at which FLOPs are taken, whatever the study counts."""
    student_is_new: bool
    """The student is a checkpoint of its own, which does not know the task yet."""
    select_metric: Callable[[pretrained.Classifier], float]
    """The metric of a cut model on the selection split: for the choice among checkpoints of one
    architecture, never for a gradient."""
    device: str
    """Of teacher, student and tensors, such as "cpu" or "cuda:0"."""
    cache: Path
    """Folder for what is made once: see `cache`."""
    memory: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    """What a method works out once for all its populations, under a key of its own."""

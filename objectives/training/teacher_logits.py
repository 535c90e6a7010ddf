"""The teacher's answers to the train rows: computed once for all workers and launches of a run."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from objectives.cache import cached_array
from objectives.measures.evaluate import EVALUATION_BATCH, predict
from objectives.session import Session
from objectives.students.bert.cutting import count_labels
from objectives.students.bert.pretrained import Classifier, fingerprint_of
from objectives.text.data import Split


def kept_logits(teacher: Classifier, train: Split, *, session: Session) -> Tensor:
    """`evaluate.predict`, or what it has left in the cache; the caller holds a lock."""
    device, progress = session.device, session.progress
    kind = torch.device(device).type
    file = session.cache / f"teacher-logits-{fingerprint_of_answers(teacher, train, kind)}.npy"

    def answer() -> NDArray[np.float32]:
        progress.begin("let the teacher answer train", -(-len(train) // EVALUATION_BATCH))
        answers: NDArray[np.float32] = predict(teacher, train, device, progress).numpy()
        return answers

    shape = (len(train), count_labels(teacher.config))
    return torch.from_numpy(cached_array(file, shape, np.float32, progress.note, answer))


def fingerprint_of_answers(teacher: Classifier, train: Split, how: str) -> str:
    """Of its weights and settings, the tokens of train and how it is run, 16 hexadecimal digits."""
    return fingerprint_of(teacher, {"train": train.fingerprint, "how": how})

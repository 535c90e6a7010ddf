"""The rows of `compress` and its rivals."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.compress import answers_of


def test_answers_count_in_the_order_of_the_labels_of_the_original() -> None:
    folder: Any = SimpleNamespace(
        labels=["acceptable", "unacceptable"],
        logits=lambda texts: np.tile([[2.0, 1.0]], (len(texts), 1)),
    )
    assert answers_of(folder, ["a"] * 9, ["unacceptable", "acceptable"]).tolist() == [1] * 9

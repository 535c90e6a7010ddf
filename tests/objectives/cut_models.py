"""Models that were cut raggedly, no layer like another, which several tests share."""

import numpy as np
import torch
from torch import Tensor

from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from tests.conftest import TINY

Cut = tuple[BertArchitecture, PrunedBertForSequenceClassification]
RAGGED = BertArchitecture(
    (
        LayerUnits((0, 2), tuple(range(0, 40, 2))),
        LayerUnits((), tuple(range(30))),
        LayerUnits((3,), (1, 5, 40)),
    )
)


def cut_by_masks(problem: Problem) -> Cut:
    """A layer without heads, one of all, one of one; fewer neurons and inputs."""
    masks = {
        "heads": [[False] * TINY.heads, [True] * TINY.heads, [True, *[False] * (TINY.heads - 1)]],
        "ffn": [[n % 3 > 0 for n in range(TINY.ffn)]] * TINY.layers,
        "input": [[[n % 4 > 0 for n in range(TINY.hidden)]]] * TINY.layers,
    }
    units = BertArchitecture.from_masks(TINY, masks)
    return units, cut(problem.student.state_dict(), problem.student.config, units)


@torch.no_grad()
def logits(model: torch.nn.Module, problem: Problem) -> Tensor:
    """Logits of eight rows."""
    batch = problem.alpha.batch(np.arange(8), "cpu")
    found: Tensor = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    return found

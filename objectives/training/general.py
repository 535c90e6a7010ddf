"""General distillation, TinyBERT's first phase (Jiao et al. 2020): layers of a pretrained model
learn its hidden states and attention scores on text without a task."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.device import matmul_dtype
from objectives.search_method import CurvePoint
from objectives.text.data import Batch, Split
from objectives.training.fitting import train_cells
from objectives.training.losses import intermediate_loss
from objectives.training.population import Population, Trace
from objectives.training.teacher_states import RunTeacher

_EVERY = 500  # steps from one checkpoint to the next


@dataclass(frozen=True, eq=False)
class Text:
    """The rows to learn from: `fitting.FittingRows`."""

    train: Split
    device: str


def distil_states(
    student: BertForSequenceClassification,
    teacher: BertForSequenceClassification,
    text: Text,
    **training: Any,
) -> list[CurvePoint]:
    """Train the layers of a student of the teacher's width on `intermediate_loss`, as `training`
    says to `train_cells`; returns the learning curve."""
    dtype, heads = matmul_dtype("auto", text.device), student.config.num_attention_heads
    population, asked = Population.of([student], dtype), RunTeacher(teacher, dtype)
    every_head = torch.arange(heads)[None].to(text.device), torch.ones(1, heads).to(text.device)

    def loss(batch: Batch, _: int) -> Tensor:
        trace, wanted = Trace(), asked.run(batch, with_scores=True)
        population.logits(batch, trace=trace)
        alike = [every_head] * student.config.num_hidden_layers
        return intermediate_loss(trace, wanted, batch.attention_mask, alike, {}).sum()

    weights = {n: w for n, w in population.weights.items() if n.startswith("bert.encoder.")}
    curve = train_cells(text, weights, loss, seed=0, stage="distil", every=_EVERY, **training)
    student.load_state_dict(population.slot(0))
    return curve

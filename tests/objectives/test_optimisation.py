"""AdamW in BERT's groups, and the schedule of its rate."""

from __future__ import annotations

import pytest
import torch

from objectives.optimisation import linear_schedule, weight_optimizer


def test_biases_and_layer_norms_do_not_decay() -> None:
    names = ["encoder.weight", "encoder.bias", "output.LayerNorm.weight", "classifier.bias"]
    weights = {name: torch.ones(2, requires_grad=True) for name in names}
    optimizer = weight_optimizer(weights, learning_rate=0.1)
    for weight in weights.values():
        weight.grad = torch.zeros(2)
    optimizer.step()
    assert {name for name, weight in weights.items() if weight[0] < 1} == {"encoder.weight"}


def test_the_rate_warms_up_over_a_tenth_and_falls_to_nothing() -> None:
    optimizer = weight_optimizer({"weight": torch.ones(1, requires_grad=True)}, learning_rate=2.0)
    schedule = linear_schedule(optimizer, steps=20)
    rates = []
    for _ in range(21):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([0.0, 1.0, 2.0])
    assert rates[11] == pytest.approx(1.0)
    assert rates[20] == 0

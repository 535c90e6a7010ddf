"""AdamW in BERT's groups, and the schedule of its rate."""

from itertools import pairwise

import pytest
import torch

from objectives.training.optimisation import PopulationOptimizer, linear_schedule, weight_optimizer


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


def test_a_constant_rate_stays_after_the_warm_up_and_a_linear_one_does_not() -> None:
    """A gradient that never changes moves a weight by the rate, but for Adam's rounding."""
    moved = {}
    for schedule in ("linear", "constant"):
        weight = torch.zeros(1, 1, requires_grad=True)
        optimizer = PopulationOptimizer({"bias": weight}, [0.5], 20, schedule)  # type: ignore[arg-type]
        places = [0.0]
        for _ in range(20):
            weight.grad = torch.ones(1, 1)
            optimizer.step()
            places.append(-weight.item())
        moved[schedule] = [after - before for before, after in pairwise(places)]
    assert moved["constant"][:3] == pytest.approx([0.0, 0.25, 0.5], abs=1e-4)
    assert moved["constant"][2:] == pytest.approx([0.5] * 18, abs=1e-4)
    assert moved["linear"][11] == pytest.approx(0.25, abs=1e-4)

"""AdamW in BERT's groups, and the schedule of its rate."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from objectives.training.optimisation import PopulationOptimizer, linear_schedule, parameter_groups


def test_biases_and_layer_norms_do_not_decay() -> None:
    names = ["encoder.weight", "encoder.bias", "output.LayerNorm.weight", "classifier.bias"]
    weights = {name: torch.ones(2, requires_grad=True) for name in names}
    optimizer = torch.optim.AdamW(parameter_groups(weights, 0.1))
    for weight in weights.values():
        weight.grad = torch.zeros(2)
    optimizer.step()
    assert {name for name, weight in weights.items() if weight[0] < 1} == {"encoder.weight"}


def test_the_rate_warms_up_over_a_tenth_and_falls_to_nothing() -> None:
    optimizer = torch.optim.AdamW([torch.ones(1, requires_grad=True)], lr=2.0)
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


def test_students_of_different_rates_move_as_they_would_alone() -> None:
    def begun() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        turned = torch.randn(3, 5, 7, generator=generator).mT.contiguous().mT
        values = {"weight": turned, "bias": torch.randn(3, 5, generator=generator)}
        return {name: value.requires_grad_() for name, value in values.items()}

    def moved(weights: dict[str, Tensor], optimizer: PopulationOptimizer, slots: slice) -> None:
        for number in range(5):
            generator = torch.Generator().manual_seed(number)
            gradients = torch.randn(3, 7, 5, generator=generator)
            weights["weight"].grad = gradients.mT[slots]
            if number > 2:  # one that had no gradient before
                weights["bias"].grad = gradients[slots, 0]
            optimizer.step()

    together, rates = begun(), [0.1, 0.05, 0.02]
    optimizer = PopulationOptimizer(together, rates, 10, "linear")
    moved(together, optimizer, slice(None))
    resumed = begun()
    other = PopulationOptimizer(resumed, rates, 10, "linear")
    other.resume({name: value.clone() for name, value in optimizer.state().items()}, 5)
    moved(together, optimizer, slice(None))
    moved(resumed, other, slice(None))
    for k, rate in enumerate(rates):
        slots = slice(k, k + 1)
        alone = {
            n: weight.detach()[slots].clone().requires_grad_() for n, weight in begun().items()
        }
        lone = PopulationOptimizer(alone, [rate], 10, "linear")
        moved(alone, lone, slots)
        moved(alone, lone, slots)
        for name, weight in alone.items():
            torch.testing.assert_close(together[name][slots], weight, rtol=0, atol=0)
            torch.testing.assert_close(resumed[name][slots], weight, rtol=0, atol=0)

"""Optimiser of the weights: AdamW with BERT's usual groups, warm-up, then decay or none."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_linear_schedule_with_warmup

from objectives.device import is_recording, on_device

Schedule = Literal["linear", "constant"]
"""Schedule of the rate after 10% of warm-up: a linear fall to 0, or constant."""

_WEIGHT_DECAY = 0.01
_WARMUP = 0.1


def parameter_groups(
    weights: Mapping[str, Tensor], learning_rate: float | Tensor
) -> list[dict[str, Any]]:
    """Groups for AdamW: weights that decay, then biases and layer norms (Devlin et al. 2019)."""
    groups: list[list[Tensor]] = [[], []]
    for name, weight in weights.items():
        norm = "layernorm" in name.lower().replace("_", "")  # DistilBERT's are "sa_layer_norm"
        groups["bias" in name or norm].append(weight)
    return [
        {"params": params, "weight_decay": decay, "lr": learning_rate}
        for params, decay in zip(groups, (_WEIGHT_DECAY, 0.0), strict=True)
    ]


def linear_schedule(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """Linear warm-up for a tenth of the `steps`, then linear decay to 0."""
    schedule: LRScheduler = get_linear_schedule_with_warmup(optimizer, int(_WARMUP * steps), steps)
    return schedule


def per_student(values_K: Tensor, like: Tensor) -> Tensor:
    """Reshape (K,) to (K, 1, ...), to broadcast over a tensor with a trial axis."""
    return values_K.view(-1, *[1] * (like.ndim - 1))


class PopulationOptimizer:
    """AdamW on weights with a trial axis, with a learning rate for each student."""

    # If all rates are equal, all students move as one parameter. Else each is a parameter of its
    # own, a slice of the weights, so that one pass over the memory moves them all.

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        rates: Sequence[float],
        steps: int,
        schedule: Schedule,
        *,
        warmup: float = _WARMUP,
    ):
        """`weights` are (K, ...), or of any shape at one rate; `rates` the peaks, one for each
        student or for all, >= 0; `steps` the length of it all, `warmup` a share of it."""
        device = str(next(iter(weights.values())).device)
        self._weights = weights
        peaks = rates[:1] if len({*rates}) == 1 else rates
        self._peaks = on_device(torch.tensor(peaks, dtype=torch.float64), device)
        # Numbers on the device, for a recorded step to read.
        self._rates = torch.zeros(len(peaks), device=device)
        self._parts: list[Mapping[str, Tensor]] = [weights]
        if len(peaks) > 1:
            self._parts = [
                {
                    name: weight.detach()[k : k + 1].requires_grad_()
                    for name, weight in weights.items()
                }
                for k in range(len(peaks))
            ]
        groups = map(parameter_groups, self._parts, self._rates.unbind())
        self._optimizer = torch.optim.AdamW(list(chain.from_iterable(groups)), fused=True)
        self._steps, self._kind, self._done = steps, schedule, 0
        self._warmup = int(warmup * steps)

    def state(self) -> dict[str, Tensor]:
        """State: the weights, and AdamW's averages and steps of each that has had a gradient."""
        state = {}
        for name, weight in self._weights.items():
            state[f"weight.{name}"] = weight.detach()
            moved = [self._optimizer.state.get(part[name], {}) for part in self._parts]
            for kind in moved[0]:
                values = [of_part[kind] for of_part in moved]
                state[f"{kind}.{name}"] = values[0] if values[0].ndim == 0 else torch.cat(values)
        return state

    def resume(self, state: Mapping[str, Tensor], done: int) -> None:
        """Continue from the state of another optimiser after this many steps."""
        for name, weight in self._weights.items():
            weight.data.copy_(state[f"weight.{name}"])
            if f"step.{name}" not in state:
                continue
            size = len(weight) // len(self._parts)
            for index, part in enumerate(self._parts):
                moved = self._optimizer.state[part[name]]
                moved["step"] = state[f"step.{name}"].to(weight.device, copy=True)
                for kind in ("exp_avg", "exp_avg_sq"):
                    average = state[f"{kind}.{name}"][index * size :][:size]
                    # In memory it lies as the weight does: one kernel goes through all three.
                    moved[kind] = torch.empty_like(part[name].data).copy_(average)
        self._done = done

    def step(self) -> None:
        """Update the weights, and clear the gradients."""
        self.set_rate()
        self.move()

    def set_rate(self) -> None:
        """Set the rate of the next step, which only the host knows."""
        share = 1.0
        if self._done < self._warmup:
            share = self._done / self._warmup
        elif self._kind == "linear":
            share = max(0.0, (self._steps - self._done) / max(1, self._steps - self._warmup))
        self._rates.copy_(self._peaks * share)
        self._done += 1

    def move(self) -> None:
        """Make the step at this rate, only on the device."""
        # torch refuses to record a step without this, and warns of a plain one with it.
        recorded = is_recording()
        for group in self._optimizer.param_groups:
            group["capturable"] = recorded
        if len(self._parts) > 1:
            for name, weight in self._weights.items():
                gradients = [None] * len(weight) if weight.grad is None else weight.grad.split(1)
                for part, gradient in zip(self._parts, gradients, strict=True):
                    part[name].grad = gradient
        self._optimizer.step()
        self.drop_gradients()

    def learn(self, losses: Tensor) -> dict[str, Tensor]:
        """Make the step against these losses at this rate; what they were, "loss"."""
        losses.sum().backward()
        self.move()
        return {"loss": losses.detach()}

    def drop_gradients(self) -> None:
        for weight in self._weights.values():
            weight.grad = None
        self._optimizer.zero_grad(set_to_none=True)

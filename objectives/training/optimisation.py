"""How weights are trained: AdamW with BERT's usual groups, warm-up, then decay or none."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_linear_schedule_with_warmup

from objectives.device import on_device

Schedule = Literal["linear", "constant"]
"""After 10% of warm-up the rate falls linearly to 0, or stays."""

_WEIGHT_DECAY = 0.01
_WARMUP = 0.1
_AVERAGES = ("exp_avg", "exp_avg_sq")
"""Averages of the gradients and of their squares, as AdamW calls them."""


def weight_optimizer(
    weights: Mapping[str, Tensor], learning_rate: float | Tensor
) -> torch.optim.AdamW:
    """AdamW over the named weights; no decay on biases and layer norms (Devlin et al. 2019)."""
    groups: list[list[Tensor]] = [[], []]
    for name, weight in weights.items():
        norm = "layernorm" in name.lower().replace("_", "")  # DistilBERT's are "sa_layer_norm"
        groups["bias" in name or norm].append(weight)
    decayed = {"params": groups[False], "weight_decay": _WEIGHT_DECAY}
    plain = {"params": groups[True], "weight_decay": 0.0}
    return torch.optim.AdamW([decayed, plain], lr=learning_rate, fused=True)


def linear_schedule(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float = _WARMUP
) -> LRScheduler:
    """Linear warm-up for a share of the `steps`, then linear decay to 0."""
    schedule: LRScheduler = get_linear_schedule_with_warmup(optimizer, int(warmup * steps), steps)
    return schedule


def per_student(values_K: Tensor, like: Tensor) -> Tensor:
    """(K,) as (K, 1, ...), to go with a tensor of any shape that has a trial axis."""
    return values_K.view(-1, *[1] * (like.ndim - 1))


class PopulationOptimizer:
    """AdamW on weights with a trial axis, at a learning rate for each student."""

    def __init__(
        self, weights: Mapping[str, Tensor], rates: Sequence[float], steps: int, schedule: Schedule
    ):
        """`weights` are (K, ...), `rates` the peaks, one for each student or for all, >= 0; `steps`
        the length of it all."""
        device = str(next(iter(weights.values())).device)
        self._weights, self._peak = weights, max(rates)
        self._share: Tensor | None = None
        if len({*rates}) > 1:
            self._share = on_device(torch.tensor(rates) / self._peak, device)
        # A number on the device, for a recorded step to read.
        self._rate = torch.zeros((), device=device)
        self._optimizer = weight_optimizer(weights, self._rate)
        self._steps, self._kind, self._done = steps, schedule, 0

    def state(self) -> dict[str, Tensor]:
        """The weights, and of each that has had a gradient AdamW's two averages and its steps."""
        state = {}
        for name, weight in self._weights.items():
            state[f"weight.{name}"] = weight.detach()
            for part, value in self._optimizer.state.get(weight, {}).items():
                state[f"{part}.{name}"] = value
        return state

    def resume(self, state: Mapping[str, Tensor], done: int) -> None:
        """Go on from what another like it had after this many steps."""
        for name, weight in self._weights.items():
            weight.data.copy_(state[f"weight.{name}"])
            if f"step.{name}" in state:
                self._optimizer.state[weight] = {
                    "step": state[f"step.{name}"].to(weight.device),
                    # In memory they lie as the weight does: one kernel goes through all three.
                    **{
                        part: torch.empty_like(weight.data).copy_(state[f"{part}.{name}"])
                        for part in _AVERAGES
                    },
                }
        self._done = done

    def step(self) -> None:
        """Move the weights against their gradients, and drop these."""
        self.set_rate()
        self.move()

    def set_rate(self) -> None:
        """Set the rate of the next step: all of it that the host decides."""
        warmup = int(_WARMUP * self._steps)
        share = 1.0
        if self._done < warmup:
            share = self._done / warmup
        elif self._kind == "linear":
            share = max(0.0, (self._steps - self._done) / max(1, self._steps - warmup))
        self._rate.fill_(self._peak * share)
        self._done += 1

    @torch.no_grad()
    def move(self) -> None:
        """Make the step at this rate, which is work for the device alone."""
        weights = list(self._weights.values())
        before: Sequence[Tensor] = ()
        if self._share is not None:
            before = torch._foreach_mul(weights, 1.0)  # copies, by a few kernels on a GPU
        # torch refuses to record a step without this, and warns of a plain one with it. A build for
        # CUDA fails at the second question where it finds no driver.
        recorded = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        for group in self._optimizer.param_groups:
            group["capturable"] = recorded
        self._optimizer.step()
        self.drop_gradients()
        if self._share is not None:
            # A step of AdamW is linear in the rate: a slower student makes a part of it.
            for weight, old in zip(weights, before, strict=True):
                torch.lerp(old, weight, per_student(self._share, weight), out=weight)

    def drop_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

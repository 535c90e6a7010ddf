"""How weights are trained: AdamW with BERT's usual groups, warm-up and linear decay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_linear_schedule_with_warmup

_WEIGHT_DECAY = 0.01
_WARMUP = 0.1


def weight_optimizer(weights: Mapping[str, Tensor], learning_rate: float) -> torch.optim.AdamW:
    """AdamW over the named weights; no decay on biases and layer norms (Devlin et al. 2019)."""
    groups: list[list[Tensor]] = [[], []]
    for name, weight in weights.items():
        groups["bias" in name or "LayerNorm" in name].append(weight)
    decayed, plain = groups
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": _WEIGHT_DECAY},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=learning_rate,
        fused=True,
    )


def linear_schedule(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """10% linear warm-up, then linear decay to 0 over `steps`."""
    schedule: LRScheduler = get_linear_schedule_with_warmup(optimizer, int(_WARMUP * steps), steps)
    return schedule

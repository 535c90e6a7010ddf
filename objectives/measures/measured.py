"""Costs counted on the model itself in a forward pass, independent of formulas."""

import torch
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from objectives.measures.bits import bytes_of
from objectives.measures.evaluate import count_parameters


class WrongCostError(Exception):
    """Raised when a model's cost differs from its architecture's."""


# Up to so many parameters a pass over numbers takes less than one over shapes alone.
_SMALL = 1e6


@torch.no_grad()
def measured_flops(model: PreTrainedModel, seq_len: int, *, meta: bool = True) -> int:
    """FLOPs of one sequence, as torch counts the matmuls that the model executes; with `meta` a
    large one on the meta device. Attention is in plain matmuls, which torch always sees."""
    meta = meta and count_parameters(model) > _SMALL
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shadows = {name: tensor.to("meta") if meta else tensor for name, tensor in tensors}
    tokens = torch.ones(1, seq_len, dtype=torch.long)
    if model.config.is_encoder_decoder:  # it answers at the end of the text
        tokens[:, -1] = model.config.eos_token_id
    tokens = tokens.to("meta" if meta else model.device)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        functional_call(model, shadows, kwargs={"input_ids": tokens})
    return int(counter.get_total_flops())


def measured_costs(model: PreTrainedModel, seq_len: int, *, meta: bool = True) -> dict[str, int]:
    """FLOPs of one sequence (see `measured_flops`), parameters and bytes of a model, by unit."""
    return {
        f"flops@{seq_len}": measured_flops(model, seq_len, meta=meta),
        "params": count_parameters(model),
        "bytes": bytes_of(model.state_dict()),
    }

"""Recurrence of a cell over tokens. It imports torch alone: an exported model carries a copy."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_Given = tuple[Tensor, ...]
"""Inputs of a token, or of all tokens, one a row."""
_After = Callable[[Tensor, _Given], Tensor]
"""Step of a recurrence: from the last state and the inputs of a token to the next state."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _looped(after: _After, state: Tensor, rows: _Given) -> Tensor:
    """States of all rows, stacked. A compiler would unroll the loop, in minutes."""
    states = []
    for given in zip(*(row.unbind() for row in rows), strict=True):
        state = after(state, given)
        states.append(state)
    return torch.stack(states)


def _scanned(after: _After, state: Tensor, rows: _Given) -> Tensor:
    """`_looped` as one node of a graph, which takes any number of rows: for an export."""
    from torch._higher_order_ops import scan

    def twice(state: Tensor, given: _Given) -> tuple[Tensor, Tensor]:
        state = after(state, given)
        return state, state.clone()  # for the next token, and to be kept

    states: Tensor = scan(twice, state, rows)[1]
    return states


def _product(factor: Tensor | None, other: Tensor | None) -> Tensor:
    assert factor is not None
    return factor if other is None else factor * other


def over_tokens(
    join: nn.Linear,
    hidden_BSD: Tensor,
    mask_BS1: Tensor,
    step: Callable[[Tensor, Tensor], Tensor],
    read: Callable[[int, Tensor, Tensor], Tensor | None] | None = None,
    window: int = 1,
) -> Tensor:
    """Hidden states (B, S, D) of a recurrent cell, 0 at padding; `join` is W, (2 D, 2 D)."""
    # `step` makes h_t of h + c (tanh(u) - h), where [c, u] = [x, h] W with a sigmoid on c. With
    # `read`, h = read(0, h_{t-1}) read(1, mean of x_{t-m} to x_{t-1}) and x = read(2, x_t) read(3,
    # mean of h_{t-m} to h_{t-1}), None being 1 and m the `window`; else h = h_{t-1} and x = x_t.
    of_token_ED, of_state_ED = join.weight.chunk(2, dim=1)
    masks_SB11 = mask_BS1.transpose(0, 1)[:, :, None].contiguous()
    if read is None:
        hidden_BSD = nn.functional.linear(hidden_BSD, of_token_ED, join.bias)
    tokens = [hidden_BSD.transpose(0, 1)[:, :, None].contiguous()]
    if read is not None:
        before = nn.functional.pad(hidden_BSD.transpose(1, 2), (window, 0))[..., :-1]
        before_BSD = nn.functional.avg_pool1d(before, window, 1).transpose(1, 2)
        tokens.append(before_BSD.transpose(0, 1)[:, :, None].contiguous())

    def after(memory_BMD: Tensor, given: _Given) -> Tensor:
        *tokens_given, mask_B11, there_B11 = given
        state_B1D = memory_BMD[:, -1:]
        if read is None:
            joined_B1E = tokens_given[0] + nn.functional.linear(state_B1D, of_state_ED)
        else:
            token_B1D, before_B1D = tokens_given
            past_B1D = memory_BMD.mean(1, keepdim=True)
            state_B1D = _product(read(0, state_B1D, mask_B11), read(1, before_B1D, mask_B11))
            token_B1D = _product(read(2, token_B1D, mask_B11), read(3, past_B1D, mask_B11))
            joined_B1E = join(torch.cat([token_B1D, state_B1D], -1))
        gate_B1D, inner_B1D = joined_B1E.chunk(2, dim=-1)
        new_B1D = step(state_B1D.lerp(inner_B1D.tanh(), gate_B1D.sigmoid()), mask_B11)
        if window > 1:
            new_B1D = torch.cat([memory_BMD[:, 1:], new_B1D], 1)
        return torch.where(there_B11, new_B1D, memory_BMD)

    memory_BMD = hidden_BSD.new_zeros(len(hidden_BSD), window, len(of_state_ED) // 2)
    through = _scanned if torch.compiler.is_exporting() else _looped
    states_SBMD = through(after, memory_BMD, (*tokens, masks_SB11, masks_SB11.bool()))
    states_BSD: Tensor = states_SBMD[:, :, -1].transpose(0, 1) * mask_BS1
    return states_BSD

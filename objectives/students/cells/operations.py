"""Operations that an edge of a cell may do with a sequence. Each takes hidden states (B, S, D), 0
at padding, and the mask (B, S, 1) of 1 and 0, and gives (B, S, D), anything at padding. This file
imports torch alone: an exported model carries a copy of it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

HEAD_DIM = 16
"""Dimensions of an attention head. Widths are multiples of it."""
FAR = -1e4
"""Value below all hidden states, for padding that must not be a maximum."""


class GatedConvolution(nn.Module):
    """A gated linear unit, a convolution of each channel, a linear layer (after Wu et al. 2019)."""

    def __init__(self, width: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.gated = nn.Linear(width, 2 * width)
        padding = dilation * (kernel // 2)
        self.along = nn.Conv1d(width, width, kernel, 1, padding, dilation, groups=width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Padding gives its neighbours nothing."""
        units = nn.functional.glu(self.gated(hidden_BSD), dim=-1) * mask_BS1
        mixed = self.along(units.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.out(nn.functional.gelu(mixed))
        return out


class LightConvolution(nn.Module):
    """A gated unit, a convolution of one kernel a head, a linear layer (Wu et al. 2019)."""

    def __init__(self, width: int, kernel: int, dynamic: bool = False):
        super().__init__()
        self.kernel, heads = kernel, width // HEAD_DIM
        self.gated, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.kernels_of = nn.Linear(width, heads * kernel) if dynamic else None
        self.kernels_HK = None if dynamic else nn.Parameter(torch.zeros(heads, kernel))

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Padding gives its neighbours nothing."""
        units = nn.functional.glu(self.gated(hidden_BSD), dim=-1) * mask_BS1
        if self.kernels_HK is not None:
            weights_D1K = self.kernels_HK.softmax(-1).repeat_interleave(HEAD_DIM, 0)[:, None]
            units_BDS, channels = units.transpose(1, 2), len(weights_D1K)
            mixed = nn.functional.conv1d(
                units_BDS, weights_D1K, padding=self.kernel // 2, groups=channels
            ).transpose(1, 2)
        else:
            assert self.kernels_of is not None
            weights_BSHK1 = self.kernels_of(units).unflatten(-1, (-1, self.kernel, 1)).softmax(-2)
            windows_BSHCK = neighbours(units, self.kernel, 0.0).unflatten(2, (-1, HEAD_DIM))
            mixed = (windows_BSHCK @ weights_BSHK1).flatten(2)
        out: Tensor = self.out(mixed)
        return out


class Convolution(nn.Module):
    """Activation and convolution, of all channels, or of each and a linear layer (Chollet 2017)."""

    def __init__(self, width: int, kernel: int, dilation: int = 1, separable: bool = False):
        super().__init__()
        padding, groups = dilation * (kernel // 2), width if separable else 1
        self.along = nn.Conv1d(width, width, kernel, 1, padding, dilation, groups)
        self.out = nn.Linear(width, width) if separable else nn.Identity()

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        out: Tensor = self.out(self.along(hidden_BSD.relu().transpose(1, 2)).transpose(1, 2))
        return out


class GatedUnit(nn.Module):
    """A gated linear unit and a linear layer: each position for itself."""

    def __init__(self, width: int):
        super().__init__()
        self.gated, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        out: Tensor = self.out(nn.functional.glu(self.gated(hidden_BSD), dim=-1))
        return out


class Highway(nn.Module):
    """s + sigmoid(c) (a(h) - s) of a state s, [c, h] = s W, activation a (Pham et al. 2018)."""

    # There all activations of an edge share W; here each has its own.

    def __init__(self, width: int, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.activation, self.gated = activation, nn.Linear(width, 2 * width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        gate, inner = self.gated(hidden_BSD).chunk(2, dim=-1)
        return hidden_BSD.lerp(self.activation(inner), gate.sigmoid())


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them: each position for itself."""

    def __init__(self, width: int):
        super().__init__()
        self.inner, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        out: Tensor = self.out(nn.functional.gelu(self.inner(hidden_BSD)))
        return out


class Positions(nn.Module):
    """Sines and cosines of positions (Vaswani et al. 2017) at scales that learn; no matmuls."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        _, S, D = hidden_BSD.shape
        places_S1 = torch.arange(S, device=hidden_BSD.device, dtype=hidden_BSD.dtype)[:, None]
        waves = torch.arange(0, D, 2, device=hidden_BSD.device, dtype=hidden_BSD.dtype) / D
        angles = places_S1 * (10_000.0**-waves)
        return (torch.cat([angles.sin(), angles.cos()], dim=-1) * self.scale).expand_as(hidden_BSD)


class Attention(nn.Module):
    """Self-attention, of this many heads or of heads of `HEAD_DIM` dimensions."""

    def __init__(self, width: int, heads: int | None = None):
        super().__init__()
        self.heads = heads or width // HEAD_DIM
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(hidden_BSD).chunk(3, dim=-1)
        )
        seen_B11S = mask_BS1.bool().transpose(1, 2)[:, None]
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen_B11S)
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out


class Pooling(nn.Module):
    """The maximum or the mean of three neighbours; it has no weights and no matmuls."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        if self.kind == "mean":
            sums = neighbours(hidden_BSD * mask_BS1, 3, 0.0).sum(-1)
            return sums / neighbours(mask_BS1, 3, 0.0).sum(-1).clamp_min(1)
        return neighbours(hidden_BSD.masked_fill(mask_BS1 == 0, FAR), 3, FAR).amax(-1)


def neighbours(hidden_BSD: Tensor, kernel: int, beyond: float) -> Tensor:
    """Window of each position, (B, S, D, kernel) with an odd kernel."""
    around = kernel // 2
    padded = nn.functional.pad(hidden_BSD, (0, 0, around, around), value=beyond)
    length = hidden_BSD.shape[1]
    return torch.stack([padded[:, first : first + length] for first in range(kernel)], dim=-1)


_KERNELS = (3, 5, 7)
LIGHT_KERNELS = (3, 5, 7, 9, 15, 31, 65)
"""Kernels of light convolutions (Gao et al. 2022)."""
_ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "linear": torch.positive,  # as it is
}
READS = ("state", "tokens before", "token", "states before")
"""Inputs of a recurrent cell besides the last state and the token: the means of those before these.
An operation acts on both of each pair, and the results are multiplied."""
WINDOWS = READS[1::2]
"""Inputs that may have no operation; then the other of the pair stands alone."""
POSITION_WISE = (*_ACTIVATIONS, "gated", "feed_forward")
"""Operations that read each position separately."""
OPERATIONS: dict[str, Callable[[int], nn.Module]] = {
    **{f"conv{kernel}": partial(GatedConvolution, kernel=kernel) for kernel in _KERNELS},
    "dilated5": partial(GatedConvolution, kernel=5, dilation=2),
    "dilated7": partial(GatedConvolution, kernel=7, dilation=3),
    **{f"plain{kernel}": partial(Convolution, kernel=kernel) for kernel in _KERNELS},
    **{f"atrous{kernel}": partial(Convolution, kernel=kernel, dilation=2) for kernel in _KERNELS},
    **{f"separable{k}": partial(Convolution, kernel=k, separable=True) for k in _KERNELS},
    **{f"light{kernel}": partial(LightConvolution, kernel=kernel) for kernel in LIGHT_KERNELS},
    **{f"dynamic{k}": partial(LightConvolution, kernel=k, dynamic=True) for k in _KERNELS},
    "attention": Attention,
    "attention1": partial(Attention, heads=1),
    "attention4": partial(Attention, heads=4),
    "gated": GatedUnit,
    "feed_forward": FeedForward,
    **{name: partial(Highway, activation=a) for name, a in _ACTIVATIONS.items()},
    "positions": Positions,
    "max3": lambda width: Pooling("max"),
    "mean3": lambda width: Pooling("mean"),
}
"""Functions that make an operation of a width, by name."""

"""Walk the unpruned and the pruned student through a few rows, block by block."""

# What a block adds to the hidden states is what its output projection gives: of attention the units
# are heads, groups of its input channels, of the FFN neurons, one channel each. Fitting the weights
# W of the pruned projection to what the unpruned one gives is least squares on what enters both,
# h_T of the unpruned path and h_S of the pruned one. Such a problem mixes the two:
#
#     |W_T t + x_t - W s - x_s|^2,  t = alpha h_T + (1 - alpha) h_S,  s = (1 - beta) h_T + beta h_S
#
# with x the hidden states beside the block, mixed in the same way: (1, 0) and (0, 1) compare the
# two weights on the unpruned and on the pruned path, (1, 1) is plain reconstruction (Bai et al.
# 2020, cross distillation; the residual is ours). All that a fit needs to know of the rows are the
# moments of s and of what is wanted.

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.bert.modeling_bert import BertLayer

from objectives.text.data import Batch


class Pair(NamedTuple):
    """Comparison of inputs: their mixes, as above, and its share of the loss."""

    alpha: float
    beta: float
    share: float = 1.0

    def compared(
        self, weight: Tensor, h_t: Tensor, h_s: Tensor, apart: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Target of W s, (tokens, E), and s, (tokens, width)."""
        # `weight` is W_T, (E, width); `h_t` and `h_s` are (tokens, width); `apart` is the hidden
        # state beside the unpruned block less that beside the pruned one, (tokens, E).
        taught, learns = h_s.lerp(h_t, self.alpha), h_t.lerp(h_s, self.beta)
        return taught @ weight.T + (self.alpha + self.beta - 1) * apart, learns


RECONSTRUCTION = Pair(1.0, 1.0)


@dataclass(frozen=True)
class Fit:
    """Least squares of one output projection, up to a constant: tr(W A W' - 2 W B')."""

    layer: int
    space: str
    """Attention ("heads") or FFN."""
    weight: Tensor
    """W of the student, (E, width), to be changed in place before the walk goes on."""
    second: Tensor
    """A, the sum of s s' over tokens, (width, width) float64; without the columns left out."""
    towards: Tensor
    """B, that of (W_T t + x_t - x_s) s', (E, width) float64; likewise."""


@torch.no_grad()
def side_by_side(
    whole: BertForSequenceClassification,
    student: BertForSequenceClassification,
    batches: Iterable[Batch],
    pairs: Sequence[Pair],
    columns: Mapping[str, Sequence[Tensor]] | None = None,
) -> Iterator[Fit]:
    """Yield block after block; each uses the student's weights at the time when it is requested."""
    # Both have the same sizes and embeddings. Of the last layer's output the classifier reads the
    # first position alone, so that this one counts there. Hidden states of all batches stay in
    # memory meanwhile: 8 E bytes a token. `columns` says of each layer of a space which input
    # channels matter, (width,) bool; all by default.
    passes = [_Pass(whole, batch) for batch in batches]
    layers = [cast("Sequence[BertLayer]", model.bert.encoder.layer) for model in (whole, student)]
    for number, (of_whole, of_student) in enumerate(zip(*layers, strict=True)):
        for space in ("heads", "ffn"):
            wanted, learning = _Block(of_whole, space), _Block(of_student, space)
            chosen = slice(None) if columns is None else columns[space][number]
            last = number == len(layers[0]) - 1
            second, towards = _moments(wanted, learning, passes, pairs, chosen, first_only=last)
            # The student's units are computed a second time to advance: to keep them would take
            # four times the memory of its hidden states.
            yield Fit(number, space, learning.output.dense.weight, second, towards)
            for at in passes:
                at.own = learning.output(learning.units(at.own, at.mask), at.own)


class _Block:
    """Attention ("heads") or FFN of a layer."""

    def __init__(self, layer: BertLayer, space: str):
        self._layer, self._space = layer, space
        self.output = layer.attention.output if space == "heads" else layer.output
        """Projects what `units` gives, adds the residual, norms."""

    def units(self, state: Tensor, mask: Tensor | None) -> Tensor:
        """The inputs of the output projection, (B, S, width)."""
        heads, layer = self._space == "heads", self._layer
        units: Tensor = layer.attention.self(state, mask)[0] if heads else layer.intermediate(state)
        return units


class _Pass:
    """Forward pass of a batch through both models, which share the embeddings."""

    def __init__(self, model: BertForSequenceClassification, batch: Batch):
        hidden: Tensor = model.bert.embeddings(batch.input_ids, batch.token_type_ids)
        self.tokens = batch.attention_mask
        """(B, S) bool; False is padding."""
        mask = create_bidirectional_mask(model.config, hidden, batch.attention_mask)
        self.mask = cast("Tensor | None", mask)
        """The mask as attention takes it."""
        self.wanted, self.own = hidden, hidden
        """Inputs (B, S, E) of the next block in the unpruned model, and in the student."""


def _moments(
    whole: _Block,
    student: _Block,
    passes: Sequence[_Pass],
    pairs: Sequence[Pair],
    kept: Tensor | slice,
    *,
    first_only: bool,
) -> tuple[Tensor, Tensor]:
    """Sum A and B of a block over all tokens, or the first ones, and advance the unpruned model."""
    weight = whole.output.dense.weight
    width = len(weight[0, kept])
    second = torch.zeros(width, width, dtype=torch.float64, device=weight.device)
    towards = torch.zeros(len(weight), width, dtype=torch.float64, device=weight.device)
    for at in passes:
        read = at.tokens.clone()
        read[:, 1:] &= not first_only
        units = whole.units(at.wanted, at.mask)
        h_t, h_s = units[read], student.units(at.own, at.mask)[read]
        apart = (at.wanted - at.own)[read]
        for pair in pairs:
            wanted, given = pair.compared(weight, h_t, h_s, apart)
            given = given[:, kept]
            second += pair.share * (given.T @ given).double()
            towards += pair.share * (wanted.T @ given).double()
        at.wanted = whole.output(units, at.wanted)
    return second, towards

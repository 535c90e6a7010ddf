"""K students that train as one program: every weight has a leading trial axis. Shapes: K students,
B sequences, S positions, T = B x S, N = K x B, D hidden size, I of its dimensions, H heads, P
dimensions of a head, F FFN neurons, C classes. Weights keep BERT's names and orientation; the
embeddings are frozen and stored once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.bert.modeling_bert import BertEmbeddings

from objectives.device import autocast, on_device
from objectives.errors import UserError
from objectives.students.bert.architecture import BertArchitecture, Widths
from objectives.students.bert.cutting import shape_of, widths_of
from objectives.students.bert.position_bias import buckets_of
from objectives.students.bert.pretrained import Classifier, is_cut
from objectives.text.data import Batch
from objectives.training.computed_weights import (
    masked_weights,
    rounded_activations,
    rounded_products,
    rounded_weights,
)
from objectives.training.fusing import fuse, joint, take

EMBEDDINGS = "bert.embeddings."
"""Prefix of the names of the embeddings' weights."""


@dataclass(eq=False)
class Trace:
    """Record of a forward pass, for losses on hidden states and attention."""

    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states (K, B, S, D) of the embeddings, then of each layer."""
    scores: list[Tensor | None] = field(default_factory=list)
    """Attention scores (K, B, H, S, S) of each layer before the softmax; None without heads."""
    masks: list[Tensor | None] = field(default_factory=list)
    """Mask of each layer, (K, B) or (K, 1); None where all students have it."""
    with_scores: bool = True


@dataclass(frozen=True, eq=False)
class _Pass:
    """A forward pass, for the layers that it goes through."""

    sequences: int
    unseen: Tensor
    """Bias of the scores, (N, 1, 1, S): -inf at padding."""
    masks: Mapping[str, Tensor]
    """Of each sequence, (K, B, layers, *units_of) of each space."""
    trace: Trace | None = None

    def mask(self, space: str, layer: int) -> Tensor | None:
        return self.masks[space][:, :, layer] if space in self.masks else None


@dataclass(frozen=True, eq=False)
class Population:
    """Weights of K students, padded to the widest (see `fusing`), and their common forward pass."""

    # A mask multiplies a unit: the context of a head, an FFN neuron after its activation, a
    # dimension of the value or of the query after its bias, an input of Q, K and V (not of the
    # residual path). The mask of a layer is the share of what its attention, and then its FFN,
    # gives; the rest is what enters. Query and key are masked in the query alone: in both the mask
    # would act squared, and its gradient would vanish at 0. So the student at masks of 0 and 1 is
    # exactly the model cut to them. There is no dropout: a result depends on nothing but fields,
    # seed and data.

    weights: dict[str, Tensor]
    """Weights (K, ...) by BERT's names, without embeddings; relative positions do not learn."""
    reads: dict[str, Tensor]
    """Dimensions (K, I) int64 that a projection reads, by name, D for a zero; missing: all."""
    embeddings: BertEmbeddings
    widths: tuple[tuple[Widths[int], ...], ...]
    """Widths of each layer of each student, without padding."""
    padded: tuple[Widths[int], ...]
    """Widths of each layer with padding."""
    sublayers: tuple[tuple[str, int], ...]
    """Order of the sublayers: the attention, "s", or the FFN, "f", of a layer."""
    head_dim: int
    """Dimensions of a whole head: their root scales the scores."""
    activation: nn.Module
    pooler_activation: nn.Module
    layer_norm_eps: float
    matmul_dtype: torch.dtype
    """Type of the matmuls, float32 or bfloat16; all else is float32."""
    rounding: tuple[BertArchitecture, ...] = ()
    """Architectures of quantised students, whose weights and inputs a forward pass rounds."""

    @classmethod
    def of(
        cls, models: Sequence[Classifier], matmul_dtype: torch.dtype = torch.float32
    ) -> "Population":
        """Stack copies of K classifiers of one shape, or cut from one, with the same embeddings."""
        config = models[0].config
        embeddings = models[0].get_submodule("bert.embeddings")
        assert isinstance(embeddings, BertEmbeddings)
        activation: nn.Module = ACT2FN[config.hidden_act]
        widths = tuple(widths_of(model.config) for model in models)
        padded = joint(widths)
        pads = activation(torch.zeros(1)).item() == 0  # a neuron that only pads gives nothing
        on_gpu = next(models[0].parameters()).device.type != "cpu"
        low_rank = any(".reduce." in name for name in models[0].state_dict())
        if on_gpu and pads and is_cut(models[0]) and not low_rank:  # no masks of neurons
            # A GPU multiplies numbers of 16 bits in multiples of 8.
            padded = tuple(layer._replace(ffn=-(-layer.ffn // 8) * 8) for layer in padded)
        if len(set(widths)) > 1 and not pads:
            raise UserError(
                f"models that were cut differently cannot train together: their activation "
                f"{config.hidden_act!r} is not 0 at 0; train them one by one"
            )
        states = [
            {n: v for n, v in model.state_dict().items() if not n.startswith(EMBEDDINGS)}
            for model in models
        ]
        weights, reads = fuse(states, widths, padded, config.hidden_size)
        # A matrix (K, O, I) lies in memory as (K, I, O), as its gradient: autograd would copy that.
        laid = {n: w.mT.contiguous().mT if w.ndim == 3 else w for n, w in weights.items()}
        return cls(
            weights={name: weight.requires_grad_() for name, weight in laid.items()},
            reads=reads,
            embeddings=embeddings.eval().requires_grad_(False),
            widths=widths,
            padded=padded,
            sublayers=in_order(getattr(config, "sublayers", None) or "sf" * len(padded)),
            head_dim=config.head_dim if is_cut(models[0]) else shape_of(config).head_dim,
            activation=activation,
            pooler_activation=models[0].get_submodule("bert.pooler.activation"),
            layer_norm_eps=config.layer_norm_eps,
            matmul_dtype=matmul_dtype,
        )

    @property
    def size(self) -> int:
        """K, the number of students."""
        return len(self.widths)

    def hold_zeros(self) -> None:
        """Give zero weights of the layers no gradient from now on, so that they stay 0."""
        for name, weight in self.weights.items():
            if name.startswith("bert.encoder.") and weight.ndim == 3:
                weight.register_hook(partial(torch.mul, weight.detach() != 0))

    def slot(self, index: int) -> dict[str, Tensor]:
        """State dict of one student with its embeddings, by its model's names."""
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        hidden = self.weights["bert.pooler.dense.weight"].shape[-1]
        cut = take(weights, self.reads, self.widths[index], self.padded, index, hidden)
        shared = {EMBEDDINGS + name: w for name, w in self.embeddings.state_dict().items()}
        return {**shared, **cut}

    def logits(
        self,
        batch: Batch,
        masks: Mapping[str, Tensor] | None = None,
        trace: Trace | None = None,
        *,
        row_masks: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Logits (K, B, C) of every student on a batch, float32; `trace` records the layers."""
        # `masks` are those of `masked_weights`, `row_masks` map a space to (K, B, layers,
        # *units_of), masks for each sequence; a space that is in neither is open. Masks are for
        # unpruned students.
        of_rows = dict(row_masks or {})
        if masks and "layers" in masks:
            of_rows["layers"] = masks["layers"][:, None]
        with autocast(self.matmul_dtype, batch.input_ids.device.type):
            weights = masked_weights(self.weights, masks) if masks else self.weights
            students = replace(self, weights=rounded_weights(weights, self.rounding))
            return _float32(students._logits(batch, of_rows, trace))

    def _logits(self, batch: Batch, masks: Mapping[str, Tensor], trace: Trace | None) -> Tensor:
        B, S = batch.input_ids.shape
        hidden_KTD = self.embedded(batch).flatten(1, 2)
        unseen_N11S = self._unseen(batch.attention_mask, hidden_KTD.dtype)
        at = _Pass(B, unseen_N11S, masks, trace)
        # The classifier reads the first position only; a trace wants all.
        last = max((n for n, widths in enumerate(self.padded) if widths.layers), default=None)
        for number, (letter, layer) in enumerate(self.sublayers):
            if trace is not None and number % 2 == 0:
                trace.hidden.append(hidden_KTD.unflatten(1, (B, S)))
            first_only = trace is None and (letter, layer) == ("s", last)
            hidden_KTD = self._sublayer(letter, layer, hidden_KTD, at, first_only=first_only)
        if trace is not None:
            trace.hidden.append(hidden_KTD.unflatten(1, (B, S)))
        if trace is not None or last is None:
            hidden_KTD = _first(hidden_KTD, B)
        return self._classified(hidden_KTD)

    def _sublayer(
        self, letter: str, layer: int, hidden_KTD: Tensor, at: _Pass, *, first_only: bool = False
    ) -> Tensor:
        """Output of a layer's attention or FFN, mixed with its input by the mask of the layer."""
        # The FFN takes first positions alone, too.
        trace, mask_KB = at.trace, at.mask("layers", layer)
        present = [widths[layer].layers for widths in self.widths]
        if mask_KB is not None:
            mask_KB = mask_KB.squeeze(-1)
        elif not all(present):
            mask_KB = _present(tuple(present), str(hidden_KTD.device))
        if trace is not None and letter == "s":
            trace.masks.append(mask_KB)
            trace.scores.append(None)
        if not self.padded[layer].layers:
            return hidden_KTD
        if letter == "f":
            given_KTD = self._feed_forward(layer, hidden_KTD, at)
        else:
            given_KTD = self._attention(layer, hidden_KTD, at, first_only=first_only)
        if mask_KB is None:
            return given_KTD
        entered_KTD = _first(hidden_KTD, at.sequences) if first_only else hidden_KTD
        entered_KBSD, given_KBSD = (
            states.unflatten(1, (at.sequences, -1)) for states in (entered_KTD, given_KTD)
        )
        share_KB11 = mask_KB[..., None, None].to(given_KTD.dtype)
        return torch.lerp(entered_KBSD, given_KBSD, share_KB11).flatten(1, 2)

    def embedded(self, batch: Batch) -> Tensor:
        """Input of the first layer of every student, (K, B, S, D)."""
        with torch.no_grad(), autocast(self.matmul_dtype, batch.input_ids.device.type):
            embedded_BSD = _float32(
                self.embeddings(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids)
            )
        return embedded_BSD.expand(self.size, -1, -1, -1)

    def through(
        self, layers: Sequence[int], hidden_KBSD: Tensor, attended_BS: Tensor
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run layers of a plain BERT on (K, B, S, D): states, and logits after the last."""
        sequences = len(attended_BS)
        with autocast(self.matmul_dtype, attended_BS.device.type):
            students = replace(self, weights=rounded_weights(self.weights, self.rounding, layers))
            at = _Pass(sequences, self._unseen(attended_BS, hidden_KBSD.dtype), {})
            states = [hidden_KBSD]
            for layer in layers:
                given_KTD = states[-1].flatten(1, 2)
                for letter in "sf":
                    given_KTD = students._sublayer(letter, layer, given_KTD, at)
                states.append(given_KTD.unflatten(1, (sequences, -1)))
            if len(self.padded) - 1 not in layers:
                return states, None
            return states, _float32(students._classified(states[-1][:, :, 0]))

    def _unseen(self, attended_BS: Tensor, dtype: torch.dtype) -> Tensor:
        """Bias of the scores, (N, 1, 1, S), computed once instead of in each layer."""
        (B, S), device = attended_BS.shape, attended_BS.device
        scores_dtype = dtype if device.type == "cpu" else self.matmul_dtype
        unseen_BS = torch.zeros(B, S, dtype=scores_dtype, device=device)
        unseen_BS.masked_fill_(~attended_BS, -torch.inf)
        return unseen_BS.expand(self.size, -1, -1).reshape(self.size * B, 1, 1, S)

    def _classified(self, first_KBD: Tensor) -> Tensor:
        """Logits (K, B, C) of the last layer's first position."""
        pooled_KBD = self.pooler_activation(self._linear("bert.pooler.dense", first_KBD))
        return self._linear("classifier", pooled_KBD)

    def _attention(self, layer: int, hidden_KTD: Tensor, at: _Pass, *, first_only: bool) -> Tensor:
        """Output of the attention (K, T, D); (K, B, D) if only first positions are needed."""
        name = f"bert.encoder.layer.{layer}.attention."
        heads, sequences, trace = self.padded[layer].heads, at.sequences, at.trace
        residual_KTD = _first(hidden_KTD, sequences) if first_only else hidden_KTD
        if heads:
            read = self._inputs(name + "self.", layer, hidden_KTD, at)
            if first_only:
                read[name + "self.query"] = _first(read[name + "self.query"], sequences)
            query, key, value = (
                self._linear(projection, rounded_activations(inputs, self.rounding, layer))
                .unflatten(1, (sequences, -1))
                .unflatten(-1, (heads, -1))
                .flatten(0, 1)
                for projection, inputs in read.items()
            )
            query, value = _masked(query, at.mask("qk", layer)), _masked(value, at.mask("v", layer))
            query, key, value = (
                rounded_products(factor, self.rounding, layer) for factor in (query, key, value)
            )
            added_NHQS = unseen_N11S = at.unseen
            bias_KHU = self.weights.get(name + "self.position_bias.weight")
            if bias_KHU is not None:
                # Frozen, as positions are in the embeddings: a CPU has no fast attention for a
                # bias that learns.
                buckets_SS = buckets_of(unseen_N11S.shape[-1], unseen_N11S.device)
                buckets_QS = buckets_SS[:1] if first_only else buckets_SS
                bias_K1HQS = bias_KHU.detach().to(unseen_N11S.dtype)[..., buckets_QS][:, None]
                unseen_KB11S = unseen_N11S.unflatten(0, (self.size, -1))
                added_NHQS = (unseen_KB11S + bias_K1HQS).flatten(0, 1)
            if trace is not None and trace.with_scores:
                scores_NHSS = torch.einsum("nqhp,nkhp->nhqk", query, key) * self.head_dim**-0.5
                scores_KBHSS = _float32(scores_NHSS).unflatten(0, (self.size, -1))
                if bias_KHU is not None:
                    scores_KBHSS = scores_KBHSS + _float32(bias_K1HQS)
                trace.scores[-1] = scores_KBHSS
            rounded = None
            if any(architecture.layers[layer].attention_bits for architecture in self.rounding):
                rounded = partial(rounded_products, architectures=self.rounding, layer=layer)
            context_NHSP = _attend(query, key, value, added_NHQS, self.head_dim**-0.5, rounded)
            context_NSHP = _masked(context_NHSP.transpose(1, 2), at.mask("heads", layer))
            context_KTV = context_NSHP.reshape(self.size, residual_KTD.shape[1], -1)
            context_KTV = rounded_activations(context_KTV, self.rounding, layer)
            attended = self._linear(name + "output.dense", context_KTV)
        else:
            attended = self.weights[name + "output.dense.bias"][:, None]
        return self._norm(name + "output.LayerNorm", attended + residual_KTD)

    def _inputs(self, name: str, layer: int, hidden_KTD: Tensor, at: _Pass) -> dict[str, Tensor]:
        """Inputs of Q, K and V of a layer: names of the projections to (K, T, D or I)."""
        if self.matmul_dtype == torch.bfloat16:
            hidden_KTD = hidden_KTD.bfloat16()  # once for all three
        read = [hidden_KTD]
        mask_KBRD = at.mask("input_qkv" if "input_qkv" in at.masks else "input", layer)
        if mask_KBRD is not None:
            hidden_KBSD = hidden_KTD.unflatten(1, (at.sequences, -1))
            read = [
                (hidden_KBSD * mask_KBD[:, :, None]).flatten(1, 2)
                for mask_KBD in mask_KBRD.unbind(2)
            ]
        names = [name + which for which in ("query", "key", "value")]
        inputs = dict(zip(names, read if len(read) == 3 else read * 3, strict=True))
        for name in names:
            if name in self.reads:
                places_KTI = self.reads[name][:, None].expand(-1, hidden_KTD.shape[1], -1)
                inputs[name] = functional.pad(inputs[name], (0, 1)).gather(-1, places_KTI)
        return inputs

    def _feed_forward(self, layer: int, hidden_KTD: Tensor, at: _Pass) -> Tensor:
        name = f"bert.encoder.layer.{layer}."
        if self.padded[layer].ffn:
            entering_KTD = rounded_activations(hidden_KTD, self.rounding, layer)
            up_KTF = self.activation(self._linear(name + "intermediate.dense", entering_KTD))
            if (mask_KBF := at.mask("ffn", layer)) is not None:
                up_KBSF = up_KTF.unflatten(1, (at.sequences, -1)) * mask_KBF[:, :, None]
                up_KTF = up_KBSF.flatten(1, 2)
            up_KTF = rounded_activations(up_KTF, self.rounding, layer)
            fed = self._linear(name + "output.dense", up_KTF)
        else:
            fed = self.weights[name + "output.dense.bias"][:, None]
        return self._norm(name + "output.LayerNorm", fed + hidden_KTD)

    def _linear(self, name: str, inputs_KTI: Tensor) -> Tensor:
        if (reduce_KRI := self.weights.get(name + ".reduce.weight")) is not None:
            inputs_KTI, name = inputs_KTI @ reduce_KRI.transpose(1, 2), name + ".expand"
        weight_KOI, bias_KO = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return torch.baddbmm(bias_KO[:, None], inputs_KTI, weight_KOI.transpose(1, 2))

    def _norm(self, name: str, inputs_KTD: Tensor) -> Tensor:
        scale_KD, shift_KD = self.weights[name + ".weight"], self.weights[name + ".bias"]
        shape, eps = inputs_KTD.shape[-1:], self.layer_norm_eps
        if self.size == 1:  # one kernel instead of two
            return functional.layer_norm(inputs_KTD, shape, scale_KD[0], shift_KD[0], eps)
        normed_KTD = functional.layer_norm(inputs_KTD, shape, eps=eps)
        return torch.addcmul(shift_KD[:, None], normed_KTD, scale_KD[:, None])


@lru_cache(maxsize=256)
def _present(layers: tuple[int, ...], device: str) -> Tensor:
    """Mask (K, 1) of the students with a layer; cached, as a recorded step cannot fetch it."""
    return on_device(torch.tensor(layers)[:, None], device)


def in_order(letters: str) -> tuple[tuple[str, int], ...]:
    """Parse an order of sublayers: the next layer's attention, "s", or FFN, "f"."""
    return tuple((letter, letters[:n].count(letter)) for n, letter in enumerate(letters))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor,
    scale: float,
    rounded: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Attention (N, H, S, P) of heads (N, S, H, P); in plain matmuls if it is `rounded`."""
    query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
    if rounded is not None:
        scores = _float32(query @ key.transpose(-1, -2)) * scale + _float32(added)
        return rounded(scores.softmax(-1)) @ value
    if query.device.type == "cpu":  # whose own attention learns slowly in bfloat16
        with torch.autocast("cpu", enabled=False):
            return functional.scaled_dot_product_attention(
                _float32(query), _float32(key), _float32(value), attn_mask=added, scale=scale
            )
    # A GPU has fast kernels for heads of one size, a multiple of 8.
    size = value.shape[-1]
    wide = -(-max(query.shape[-1], size) // 8) * 8
    query, key, value = (
        functional.pad(heads, (0, wide - heads.shape[-1])) if heads.shape[-1] < wide else heads
        for heads in (query, key, value)
    )
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=added, scale=scale
    )
    return context[..., :size]


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _first(hidden_KTD: Tensor, sequences: int) -> Tensor:
    """First position of each sequence, (K, B, D)."""
    first_KBD: Tensor = hidden_KTD.unflatten(1, (sequences, -1))[:, :, 0]
    return first_KBD


def _masked(heads_NSHP: Tensor, mask: Tensor | None) -> Tensor:
    """Multiply heads by their mask, (K, B, H) or (K, B, H, P), at every position."""
    if mask is None:
        return heads_NSHP
    mask_KBHP = mask[..., None] if mask.ndim == 3 else mask
    heads_KBSHP = heads_NSHP.unflatten(0, (len(mask), -1))
    masked: Tensor = (heads_KBSHP * mask_KBHP[:, :, None]).flatten(0, 1)
    return masked

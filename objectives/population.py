"""K students that train as one program: every weight has a leading trial axis.

Shapes: K students, B sequences, S positions, T = B x S, D hidden size, H heads, P head size,
F FFN neurons, C classes. The weights keep BERT's names and orientation, so that slot k of the
population is the state dict of an ordinary classifier. The embeddings are frozen: they are stored
once and computed once per batch for all students.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.bert.modeling_bert import BertEmbeddings

from objectives.data import Batch
from objectives.pretrained import Classifier

_EMBEDDINGS = "bert.embeddings."


@dataclass(frozen=True, eq=False)
class Population:
    """The weights of K students of one shape, and their common forward pass.

    A mask multiplies what leaves a unit: the context of a head, the activation of an FFN neuron.
    The student at masks of 0 and 1 is therefore exactly the model cut to them. There is no dropout:
    a trial's result depends on nothing but its fields, its seed and its data.
    """

    weights: dict[str, Tensor]
    """BERT's name to (K, ...), trainable; all but the embeddings."""
    embeddings: BertEmbeddings
    layers: int
    head_dim: int
    activation: nn.Module
    layer_norm_eps: float

    @classmethod
    def of(cls, models: Sequence[Classifier]) -> Population:
        """K students from K classifiers of one shape, unpruned or cut; copies their weights."""
        config = models[0].config
        embeddings = models[0].get_submodule("bert.embeddings")
        assert isinstance(embeddings, BertEmbeddings)
        states = [model.state_dict() for model in models]
        weights = {
            name: torch.stack([state[name] for state in states]).requires_grad_()
            for name in states[0]
            if not name.startswith(_EMBEDDINGS)
        }
        return cls(
            weights=weights,
            embeddings=embeddings.eval().requires_grad_(False),
            layers=config.num_hidden_layers,
            head_dim=getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads,
            activation=ACT2FN[config.hidden_act],
            layer_norm_eps=config.layer_norm_eps,
        )

    @property
    def size(self) -> int:
        """K, the number of students."""
        return self.weights["classifier.bias"].shape[0]

    def slot(self, index: int) -> dict[str, Tensor]:
        """The state dict of one student, embeddings included, under BERT's names."""
        own = {name: weight[index].detach() for name, weight in self.weights.items()}
        shared = {_EMBEDDINGS + name: w for name, w in self.embeddings.state_dict().items()}
        return {**shared, **own}

    def logits(self, batch: Batch, masks: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits (K, B, C) of every student on one batch.

        `masks` maps "heads" to (K, layers, H) and "ffn" to (K, layers, F), or to (K, B, layers, H)
        and (K, B, layers, F) for masks of each sequence; a space that is missing is fully open.
        """
        masks = masks or {}
        with torch.no_grad():
            embedded_BSD = self.embeddings(
                input_ids=batch.input_ids, token_type_ids=batch.token_type_ids
            )
        B, S, D = embedded_BSD.shape
        K = self.size
        hidden_KTD = embedded_BSD.view(1, B * S, D).expand(K, -1, -1)
        allowed = batch.attention_mask[None, :, None, None, :].expand(K, -1, -1, -1, -1)
        allowed_N11S = allowed.reshape(K * B, 1, 1, S)
        for number in range(self.layers):
            heads, ffn = (
                masks[space][..., number, :] if space in masks else None
                for space in ("heads", "ffn")
            )
            hidden_KTD = self._attention(number, hidden_KTD, allowed_N11S, heads)
            hidden_KTD = self._feed_forward(number, hidden_KTD, ffn, B)
        first_KBD = hidden_KTD.view(K, B, S, D)[:, :, 0]
        pooled_KBD = self._linear("bert.pooler.dense", first_KBD).tanh()
        return self._linear("classifier", pooled_KBD)

    def _attention(
        self, layer: int, hidden_KTD: Tensor, allowed_N11S: Tensor, mask_KBH: Tensor | None
    ) -> Tensor:
        name = f"bert.encoder.layer.{layer}.attention."
        weight_KDV = self.weights[name + "output.dense.weight"]
        bias_K1D = self.weights[name + "output.dense.bias"][:, None]
        N, S = allowed_N11S.shape[0], allowed_N11S.shape[-1]
        if weight_KDV.shape[-1]:
            query, key, value = (
                self._linear(f"{name}self.{which}", hidden_KTD)
                .view(N, S, -1, self.head_dim)
                .transpose(1, 2)
                for which in ("query", "key", "value")
            )
            context_NHSP = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=allowed_N11S
            )
            context_KBSHP = context_NHSP.transpose(1, 2).unflatten(0, (self.size, -1))
            if mask_KBH is not None:
                context_KBSHP = context_KBSHP * _over_positions(mask_KBH)[..., None]
            context_KTV = context_KBSHP.reshape(self.size, hidden_KTD.shape[1], -1)
            attended = torch.baddbmm(bias_K1D, context_KTV, weight_KDV.transpose(1, 2))
        else:
            attended = bias_K1D
        return self._norm(name + "output.LayerNorm", attended + hidden_KTD)

    def _feed_forward(
        self, layer: int, hidden_KTD: Tensor, mask_KBF: Tensor | None, sequences: int
    ) -> Tensor:
        name = f"bert.encoder.layer.{layer}."
        weight_KDF = self.weights[name + "output.dense.weight"]
        bias_K1D = self.weights[name + "output.dense.bias"][:, None]
        if weight_KDF.shape[-1]:
            up_KTF = self.activation(self._linear(name + "intermediate.dense", hidden_KTD))
            if mask_KBF is not None:
                up_KBSF = up_KTF.unflatten(1, (sequences, -1)) * _over_positions(mask_KBF)
                up_KTF = up_KBSF.flatten(1, 2)
            fed = torch.baddbmm(bias_K1D, up_KTF, weight_KDF.transpose(1, 2))
        else:
            fed = bias_K1D
        return self._norm(name + "output.LayerNorm", fed + hidden_KTD)

    def _linear(self, name: str, inputs_KTI: Tensor) -> Tensor:
        weight_KOI, bias_KO = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return torch.baddbmm(bias_KO[:, None], inputs_KTI, weight_KOI.transpose(1, 2))

    def _norm(self, name: str, inputs_KTD: Tensor) -> Tensor:
        normed = functional.layer_norm(inputs_KTD, inputs_KTD.shape[-1:], eps=self.layer_norm_eps)
        scale, shift = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return torch.addcmul(shift[:, None], normed, scale[:, None])


def _over_positions(mask: Tensor) -> Tensor:
    """(K, units) or (K, B, units) to (K, 1 or B, 1, units)."""
    return mask[:, None, None] if mask.ndim == 2 else mask[:, :, None]

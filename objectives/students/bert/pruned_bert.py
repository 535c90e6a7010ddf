"""Cut model: a BERT classifier whose layers may differ in every width but the hidden size.

A plain transformers model: weights bear BERT's names, widths stand in `per_layer_config`. A layer
without heads or FFN adds only a bias, a `dropped` one nothing; a buffer `inputs` holds the
dimensions that Q, K or V read. Exports carry copies of this file, `packing` and `position_bias`."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import custom_object_save
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bert.modeling_bert import BertEmbeddings, BertPooler, BertPreTrainedModel

from .packing import PackedEmbedding, PackedLinear, rounded_inputs
from .position_bias import PositionBias, buckets_of


class PrunedBertConfig(BertConfig):
    """BERT configuration whose widths differ by layer; fields are left out if nothing was cut."""

    # `head_dim` is that of the unpruned model and does not follow from the number of heads; its
    # root scales the scores.

    model_type = "pruned_bert"

    head_dim: int = 64
    # Class variables, so that a configuration is silent on what it does not say. None: all, or not
    # quantised.
    qk_head_dim: ClassVar[int | None] = None
    v_head_dim: ClassVar[int | None] = None
    query_inputs: ClassVar[int | None] = None
    """Number of dimensions of the hidden state that Q reads."""
    key_inputs: ClassVar[int | None] = None
    value_inputs: ClassVar[int | None] = None
    pooler_act: ClassVar[str] = "tanh"
    """Activation of the dense layer before the classifier."""
    embedding_size: ClassVar[int | None] = None
    """Size of the embeddings, which are then projected to the hidden size; None: the same."""
    position_buckets: ClassVar[int | None] = None
    """Buckets of relative positions of a head; None: no relative positions."""
    weight_bits: ClassVar[int | None] = None
    input_bits: ClassVar[int | None] = None
    """Bits of the inputs of the layer's weights."""
    attention_bits: ClassVar[int | None] = None
    """Bits of Q, K, V and the attention of the layer."""
    halves: ClassVar[int | None] = None
    """Number of matrices of these bits that add up to each weight of a layer; None: one."""
    dropped: ClassVar[bool | None] = None
    """Whether the layer is dropped and passes its input on."""
    ranks: ClassVar[list[int] | None] = None
    """Ranks of Q, K, V, attention output and FFN weights as two factors; 0 or None: one matrix."""
    pooler_bits: ClassVar[int | None] = None
    pooler_halves: ClassVar[int | None] = None
    embedding_bits: ClassVar[int | None] = None
    """Bits of each number of the embeddings of words and positions."""
    sublayers: ClassVar[str | None] = None
    """Order of sublayers: "s" is the next layer's attention, "f" its FFN; None: "sf" repeated."""
    full_vocab_size: ClassVar[int | None] = None
    """Word pieces of the unpruned model, if some were removed; it computes nothing."""

    def of_layers(self) -> list["PrunedBertConfig"]:
        """Configuration of each layer, with its numbers of heads, neurons, dimensions."""
        layers: Any = self.per_layer_config
        if isinstance(layers, dict):  # before transformers 5.14 these are what config.json says
            sizes = [layers.get(str(n), {}) for n in range(self.num_hidden_layers)]
            layers = [copy.copy(self) for _ in sizes]
            for layer, fields in zip(layers, sizes, strict=True):
                vars(layer).update(fields)
        return cast("list[PrunedBertConfig]", list(layers))


class ProjectedEmbeddings(BertEmbeddings):
    """Embeddings that are narrower than the hidden states, as in ELECTRA."""

    def __init__(self, config: BertConfig):
        narrow = copy.copy(config)
        narrow.hidden_size = config.embedding_size
        super().__init__(narrow)  # type: ignore[no-untyped-call]
        self.project = nn.Linear(config.embedding_size, config.hidden_size)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden: Tensor = self.project(super().forward(*args, **kwargs))
        return hidden


def embeddings_of(config: BertConfig) -> BertEmbeddings:
    """Make embeddings of the configuration's size."""
    projected = getattr(config, "embedding_size", None) is not None
    embeddings = ProjectedEmbeddings(config) if projected else BertEmbeddings(config)
    if (bits := getattr(config, "embedding_bits", None)) is not None:
        for name in ("word_embeddings", "position_embeddings"):
            tokens, size = embeddings.get_parameter(f"{name}.weight").shape
            embeddings.set_submodule(name, PackedEmbedding(tokens, size, bits))
    return embeddings


def pooler_of(config: BertConfig) -> BertPooler:
    """Make a pooler with the configuration's activation."""
    pooler = BertPooler(config)
    pooler.activation = ACT2FN[getattr(config, "pooler_act", "tanh")]
    if (bits := getattr(config, "pooler_bits", None)) is not None:
        size, halves = config.hidden_size, getattr(config, "pooler_halves", None)
        pooler.set_submodule("dense", PackedLinear(size, size, bits, halves=halves))
    return pooler


class Projection(nn.Linear):
    """Linear layer that may have no inputs or outputs, of which torch's own initialiser warns."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, units: Tensor) -> Tensor:
        # A view of the bias would count as one that needs gradients in any mode: a copy.
        if not self.in_features:
            return self.bias.expand(*units.shape[:-1], -1).clone()
        return super().forward(units)


class InputProjection(Projection):
    """Linear layer that reads the dimensions `inputs` of its input."""

    inputs: Tensor

    def __init__(self, inputs: int, width: int):
        super().__init__(inputs, width)
        self.register_buffer("inputs", torch.zeros(inputs, dtype=torch.long))

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        return super().forward(hidden_BSD[..., self.inputs])


def projection(
    config: PrunedBertConfig, index: int, inputs: int, width: int, *, selects: bool = False
) -> nn.Module:
    """Make a linear layer with the bits and the rank, at `index`, of a layer's configuration."""
    # torch's own wherever that is possible: quantisers look for its type.
    if config.ranks and (rank := config.ranks[index]):
        reduce, expand = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, width)
        return nn.Sequential(OrderedDict(reduce=reduce, expand=expand))
    if config.weight_bits is not None and inputs and width:
        bits, into, halves = config.weight_bits, config.input_bits, config.halves
        return PackedLinear(inputs, width, bits, into, halves, selects)
    if selects:
        return InputProjection(inputs, width)
    return nn.Linear(inputs, width) if inputs and width else Projection(inputs, width)


class PrunedBertOutput(nn.Module):
    """Project the units of a block to the hidden size, add the residual, norm."""

    def __init__(self, config: PrunedBertConfig, index: int, width: int):
        super().__init__()
        self.dense = projection(config, index, width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, units_BSW: Tensor, residual_BSD: Tensor) -> Tensor:
        """Apply the output; a block without units adds only its bias."""
        projected = self.dense(units_BSW)
        normed: Tensor = self.LayerNorm(self.dropout(projected) + residual_BSD)
        return normed


class PrunedBertAttention(nn.Module):
    """Self-attention over the kept heads. `config` is the layer's own."""

    def __init__(self, config: PrunedBertConfig):
        super().__init__()
        self.heads, self.scale = config.num_attention_heads, config.head_dim**-0.5
        query_key = self.heads * (config.qk_head_dim or config.head_dim)
        value = self.heads * (config.v_head_dim or config.head_dim)
        self.self, hidden = nn.ModuleDict(), config.hidden_size
        widths = {"query": query_key, "key": query_key, "value": value}
        for index, (name, width) in enumerate(widths.items()):
            inputs = getattr(config, f"{name}_inputs") or hidden
            self.self[name] = projection(config, index, inputs, width, selects=inputs != hidden)
        if config.position_buckets is not None:
            self.self["position_bias"] = PositionBias(self.heads, config.position_buckets)
        self.output = PrunedBertOutput(config, 3, value)
        self.eager = config._attn_implementation == "eager"
        self.bits = config.attention_bits
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(
        self, hidden_BSD: Tensor, mask: Tensor | None, buckets_SS: Tensor | None = None
    ) -> Tensor:
        """`mask` is (B, 1, 1, S)."""
        context = hidden_BSD[..., :0]
        if self.heads:
            if "position_bias" in self.self:
                if buckets_SS is None:
                    buckets_SS = buckets_of(hidden_BSD.shape[1], hidden_BSD.device)
                mask = self.self["position_bias"](mask, buckets_SS)
            query, key, value = (
                self.self[name](hidden_BSD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            attend: Any = nn.functional.scaled_dot_product_attention
            if self.eager or self.bits is not None:
                attend = partial(_eager_attention, bits=self.bits)
            dropout = self.attention_dropout if self.training else 0.0
            seen = attend(query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.scale)
            context = seen.transpose(1, 2).flatten(2)
        attended: Tensor = self.output(context, hidden_BSD)
        return attended


class PrunedBertLayer(GradientCheckpointingLayer):
    """Encoder layer: attention, then the kept FFN neurons. `config` is its own."""

    def __init__(self, config: PrunedBertConfig):
        super().__init__()
        self.ffn, hidden = config.intermediate_size, config.hidden_size
        self.attention = PrunedBertAttention(config)
        self.intermediate = nn.ModuleDict({"dense": projection(config, 4, hidden, self.ffn)})
        self.output = PrunedBertOutput(config, 5, self.ffn)
        self.activation = ACT2FN[config.hidden_act]

    def forward(
        self,
        hidden_BSD: Tensor,
        mask_B11S: Tensor | None,
        sublayers: str = "sf",
        buckets_SS: Tensor | None = None,
    ) -> Tensor:
        """Apply both sublayers, or only the attention, "s", or the FFN, "f"."""
        if "s" in sublayers:
            hidden_BSD = self.attention(hidden_BSD, mask_B11S, buckets_SS)
        if "f" in sublayers:
            fed = hidden_BSD[..., :0]
            if self.ffn:
                fed = self.activation(self.intermediate["dense"](hidden_BSD))
            hidden_BSD = self.output(fed, hidden_BSD)
        return hidden_BSD


class PrunedBertForSequenceClassification(BertPreTrainedModel):
    """Cut BERT with pooler and classifier, like BERT's classifier without attention outputs."""

    config_class = PrunedBertConfig
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # a mean over the batch, which a Trainer divides if it accumulates
    _no_split_modules = ["BertEmbeddings", "PrunedBertLayer"]  # noqa: RUF012 (its base's)
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_record_outputs: dict[str, type] = {}  # noqa: RUF012 (its base's) no hidden states or attentions on request

    def __init__(self, config: PrunedBertConfig):
        super().__init__(config)
        assert config.num_labels is not None  # as transformers types it
        self.num_labels: int = config.num_labels
        layers = [nn.Identity() if c.dropped else PrunedBertLayer(c) for c in config.of_layers()]
        encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        parts = {"embeddings": embeddings_of(config), "encoder": encoder}
        self.bert = nn.ModuleDict({**parts, "pooler": pooler_of(config)})
        dropout = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        if output_attentions:
            raise ValueError("a cut BERT gives no attentions; leave output_attentions out")
        hidden = self.bert["embeddings"](input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = attention_mask
        if mask is not None and mask.dim() == 2:
            mask = mask[:, None, None, :].bool()
        buckets = None
        if self.config.position_buckets is not None:
            buckets = buckets_of(hidden.shape[1], hidden.device)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        # Each is let go unless they are asked for.
        states: tuple[Tensor, ...] | None = (hidden,) if output_hidden_states else None
        done = 0
        for layer, sublayers in self._turns():
            if isinstance(layer, PrunedBertLayer):
                hidden = layer(hidden, mask, sublayers, buckets)
            done += len(sublayers)
            if done % 2 == 0:
                states = states and (*states, hidden)
        logits = self.classifier(self.dropout(self.bert["pooler"](hidden)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        output = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=states)
        if not (self.config.return_dict if return_dict is None else return_dict):
            return output.to_tuple()
        return output

    def _turns(self) -> Iterator[tuple[nn.Module, str]]:
        """Layers, or sublayers in the configured order."""
        layers = [*self.bert.get_submodule("encoder.layer").children()]
        if self.config.sublayers is None:
            yield from zip(layers, ["sf"] * len(layers), strict=True)
            return
        of_letter = {letter: iter(layers) for letter in "sf"}
        for letter in self.config.sublayers:
            yield next(of_letter[letter]), letter

    def get_input_embeddings(self) -> nn.Module:
        return self.bert.get_submodule("embeddings.word_embeddings")

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.bert.set_submodule("embeddings.word_embeddings", value)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does; an exported model takes its code along."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self.config, "auto_map", None):
            custom_object_save(self, save_directory)


def _eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float,
    bits: int | None,
) -> Tensor:
    """Attention in matmuls, which `FlopCounterMode` counts; factors are rounded to these bits."""

    def rounded(factor: Tensor) -> Tensor:
        return factor if bits is None else rounded_inputs(factor, bits)

    query, key, value = rounded(query), rounded(key), rounded(value)
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None:
        least = torch.finfo(scores.dtype).min
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, least) if boolean else scores + attn_mask
    return nn.functional.dropout(rounded(scores.softmax(-1)), dropout_p) @ value

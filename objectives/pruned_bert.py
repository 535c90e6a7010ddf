"""The cut model: a BERT classifier whose layers may differ in every width but the hidden size.

A plain transformers model: `save_pretrained`, `from_pretrained`, and after `import objectives`
`AutoModelForSequenceClassification`. Weights bear BERT's own names, widths stand in transformers'
own `per_layer_config`. A layer without heads adds only the bias of its output projection; a layer
without FFN neurons likewise. Where Q, K or V read only some dimensions of the hidden state, a
buffer `inputs` beside the weight says which.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.activations import ACT2FN
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertPooler,
    BertPreTrainedModel,
)

from objectives.architecture import Architecture, BertShape, LayerUnits, Widths


class PrunedBertConfig(BertConfig):
    """A BERT configuration whose widths may differ from layer to layer.

    `num_attention_heads` and `intermediate_size` are always given for each layer, the others only
    where something of them was cut. The size of a whole head is that of the unpruned model
    (`head_dim`) and does not follow from the number of heads; its root scales the scores."""

    model_type = "pruned_bert"

    head_dim: int = 64
    # Class variables, so that a configuration is silent on what it does not say.
    qk_head_dim: ClassVar[int | None] = None
    """Dimensions of Q and K in each head; None: all."""
    v_head_dim: ClassVar[int | None] = None
    """Dimensions of V in each head; None: all."""
    query_inputs: ClassVar[int | None] = None
    """Number of dimensions of the hidden state that Q reads; None: all."""
    key_inputs: ClassVar[int | None] = None
    value_inputs: ClassVar[int | None] = None
    pooler_act: ClassVar[str] = "tanh"
    """What the dense layer before the classifier ends in."""
    embedding_size: ClassVar[int | None] = None
    """Size of the embeddings, which are then projected to the hidden size; None: the same."""

    def widths(self, layer: int) -> Widths[int]:
        """How much is left of a layer."""
        config = self.per_layer_config[layer] if self.is_heterogeneous else self
        heads = config.num_attention_heads
        whole = self.hidden_size if heads else 0
        return Widths(
            heads=heads,
            query_key=heads * (config.qk_head_dim or self.head_dim),
            value=heads * (config.v_head_dim or self.head_dim),
            query_inputs=config.query_inputs or whole,
            key_inputs=config.key_inputs or whole,
            value_inputs=config.value_inputs or whole,
            ffn=config.intermediate_size,
        )


class ProjectedEmbeddings(BertEmbeddings):
    """Embeddings that are narrower than the hidden states, as ELECTRA's."""

    def __init__(self, config: BertConfig):
        narrow = copy.copy(config)
        narrow.hidden_size = config.embedding_size
        super().__init__(narrow)  # type: ignore[no-untyped-call]
        self.project = nn.Linear(config.embedding_size, config.hidden_size)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden: Tensor = self.project(super().forward(*args, **kwargs))
        return hidden


def embeddings_of(config: BertConfig) -> BertEmbeddings:
    """New embeddings, as narrow as the configuration says."""
    projected = getattr(config, "embedding_size", None) is not None
    return ProjectedEmbeddings(config) if projected else BertEmbeddings(config)


def pooler_of(config: BertConfig) -> BertPooler:
    """A new pooler, with the activation that the configuration says."""
    pooler = BertPooler(config)
    pooler.activation = ACT2FN[getattr(config, "pooler_act", "tanh")]
    return pooler


class Projection(nn.Linear):
    """A linear layer that may have no inputs or no outputs (torch's own warns when it fills one).

    It is filled by transformers' weight initialisation or by a checkpoint.
    """

    def reset_parameters(self) -> None:
        pass


class InputProjection(Projection):
    """A linear layer that reads the dimensions `inputs` of its input, or all of them."""

    inputs: Tensor | None

    def __init__(self, hidden: int, inputs: int, width: int):
        super().__init__(inputs, width)
        some = None if inputs == hidden else torch.zeros(inputs, dtype=torch.long)
        self.register_buffer("inputs", some)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        some = hidden_BSD if self.inputs is None else hidden_BSD[..., self.inputs]
        return super().forward(some)


class PrunedBertOutput(nn.Module):
    """Project what the units of a block give back to the hidden size, add the residual, norm."""

    def __init__(self, config: PrunedBertConfig, width: int):
        super().__init__()
        self.width = width
        self.dense = Projection(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, units_BSW: Tensor | None, residual_BSD: Tensor) -> Tensor:
        """`units_BSW` is None where the block has no units: then its bias is all it adds."""
        bias = self.dense.bias.expand_as(residual_BSD)
        projected = bias if units_BSW is None else self.dense(units_BSW)
        normed: Tensor = self.LayerNorm(self.dropout(projected) + residual_BSD)
        return normed


class PrunedBertAttention(nn.Module):
    """Self-attention over the heads that are left."""

    def __init__(self, config: PrunedBertConfig, widths: Widths[int]):
        super().__init__()
        self.heads, self.scale = widths.heads, config.head_dim**-0.5
        self.self = nn.ModuleDict(
            {
                name: InputProjection(config.hidden_size, inputs or config.hidden_size, width)
                for name, inputs, width in (
                    ("query", widths.query_inputs, widths.query_key),
                    ("key", widths.key_inputs, widths.query_key),
                    ("value", widths.value_inputs, widths.value),
                )
            }
        )
        self.output = PrunedBertOutput(config, widths.value)
        self.eager = config._attn_implementation == "eager"
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(self, hidden_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        context = self._context(hidden_BSD, mask_B11S) if self.heads else None
        attended: Tensor = self.output(context, hidden_BSD)
        return attended

    def _context(self, hidden_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        query, key, value = (
            self.self[name](hidden_BSD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        attend = _eager_attention if self.eager else nn.functional.scaled_dot_product_attention
        dropout = self.attention_dropout if self.training else 0.0
        context = attend(
            query, key, value, attn_mask=mask_B11S, dropout_p=dropout, scale=self.scale
        )
        return context.transpose(1, 2).flatten(2)


class PrunedBertLayer(nn.Module):
    """One encoder layer: attention, then the FFN neurons that are left."""

    def __init__(self, config: PrunedBertConfig, widths: Widths[int]):
        super().__init__()
        self.ffn = widths.ffn
        self.attention = PrunedBertAttention(config, widths)
        self.intermediate = nn.ModuleDict({"dense": Projection(config.hidden_size, self.ffn)})
        self.output = PrunedBertOutput(config, self.ffn)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        attended = self.attention(hidden_BSD, mask_B11S)
        fed = self.activation(self.intermediate["dense"](attended)) if self.ffn else None
        hidden: Tensor = self.output(fed, attended)
        return hidden


class PrunedBertForSequenceClassification(BertPreTrainedModel):
    """A cut BERT with pooler and classifier; takes and returns what BERT's own classifier does."""

    config_class = PrunedBertConfig
    supports_gradient_checkpointing = False
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_record_outputs: dict[str, type] = {}  # noqa: RUF012 (its base's) no hidden states or attentions on request

    def __init__(self, config: PrunedBertConfig):
        super().__init__(config)
        self.num_labels = count_labels(config)
        layers = [
            PrunedBertLayer(config, config.widths(layer))
            for layer in range(config.num_hidden_layers)
        ]
        self.bert = nn.ModuleDict(
            {
                "embeddings": embeddings_of(config),
                "encoder": nn.ModuleDict({"layer": nn.ModuleList(layers)}),
                "pooler": pooler_of(config),
            }
        )
        self.dropout = nn.Dropout(
            config.hidden_dropout_prob
            if config.classifier_dropout is None
            else config.classifier_dropout
        )
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        hidden = self.bert["embeddings"](
            input_ids=input_ids, token_type_ids=token_type_ids, inputs_embeds=inputs_embeds
        )
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for layer in self.bert.get_submodule("encoder.layer").children():
            hidden = layer(hidden, mask)
        logits = self.classifier(self.dropout(self.bert["pooler"](hidden)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def _eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """Attention in plain matmuls, which `FlopCounterMode` sees (on the CPU it misses sdpa's)."""
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    return nn.functional.dropout(scores.softmax(-1), dropout_p) @ value


def count_labels(config: BertConfig) -> int:
    """Number of classes; transformers types it as optional."""
    assert config.num_labels is not None
    return config.num_labels


def shape_of(config: BertConfig) -> BertShape:
    """The shape of an unpruned BERT classifier."""
    return BertShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        labels=count_labels(config),
        embedding=getattr(config, "embedding_size", None),
    )


def widths_of(config: BertConfig) -> tuple[Widths[int], ...]:
    """How much is left of each layer of a classifier, cut or not."""
    if isinstance(config, PrunedBertConfig):
        return tuple(config.widths(layer) for layer in range(config.num_hidden_layers))
    shape = shape_of(config)
    return Architecture.full(shape).widths(shape)


def head_dim_of(config: BertConfig) -> int:
    """The size of a whole head."""
    if isinstance(config, PrunedBertConfig):
        return config.head_dim
    return shape_of(config).head_dim


def cut(
    weights: Mapping[str, Tensor], config: BertConfig, architecture: Architecture
) -> PrunedBertForSequenceClassification:
    """Build the smaller model: only the units of `architecture`, with their weights.

    `weights` is the state dict of the unpruned classifier of `config`, under BERT's names. Returns
    a model in evaluation mode on the CPU. Raises UserError if the architecture does not fit.
    """
    shape = shape_of(config)
    architecture.check(shape)
    own = {
        name: value
        for name, value in config.to_dict().items()
        if name not in ("model_type", "architectures", "per_layer_config")
    }
    sizes = {number: _layer_config(layer) for number, layer in enumerate(architecture.layers)}
    pruned_config = PrunedBertConfig.from_dict(
        {**own, "head_dim": shape.head_dim, "per_layer_config": sizes}
    )
    with torch.random.fork_rng(devices=[]):  # what transformers fills in is overwritten below
        model = PrunedBertForSequenceClassification(pruned_config)
    kept = dict(weights)
    for number, layer in enumerate(architecture.layers):
        kept.update(_cut_layer(weights, f"bert.encoder.layer.{number}.", layer, shape.head_dim))
    model.load_state_dict({name: kept[name].detach().cpu() for name in model.state_dict()})
    model.train(False)
    return model


def _layer_config(layer: LayerUnits) -> dict[str, Any]:
    """What the configuration says of one layer; silent on what is whole."""
    per_head = (("qk_head_dim", layer.query_key), ("v_head_dim", layer.value))
    inputs = ("query_inputs", "key_inputs", "value_inputs")
    return {
        "num_attention_heads": len(layer.heads),
        "intermediate_size": len(layer.ffn),
        **{name: len(rows[0]) for name, rows in per_head if rows is not None},
        **{name: len(getattr(layer, name)) for name in inputs if getattr(layer, name) is not None},
    }


def _cut_layer(
    weights: Mapping[str, Tensor], prefix: str, layer: LayerUnits, head_dim: int
) -> dict[str, Tensor]:
    """The weights of a layer that change their shape, and the buffers that it gains."""
    device = weights[prefix + "output.dense.weight"].device

    def dimensions(rows: tuple[tuple[int, ...], ...] | None) -> Tensor:
        """Places of the kept dimensions of the kept heads among those of all heads."""
        whole = (range(head_dim),) * len(layer.heads)
        kept = zip(layer.heads, whole if rows is None else rows, strict=True)
        places = [head * head_dim + dimension for head, row in kept for dimension in row]
        return torch.tensor(places, dtype=torch.long, device=device)

    query_key, value = dimensions(layer.query_key), dimensions(layer.value)
    ffn = torch.tensor(layer.ffn, dtype=torch.long, device=device)
    # (weight, axis that the unit lies on): the rows that make a unit, the columns that use it.
    pieces = [
        ("attention.self.query", query_key, 0),
        ("attention.self.key", query_key, 0),
        ("attention.self.value", value, 0),
        ("attention.output.dense", value, 1),
        ("intermediate.dense", ffn, 0),
        ("output.dense", ffn, 1),
    ]
    result = {}
    for name, units, axis in pieces:
        weight = prefix + name + ".weight"
        result[weight] = weights[weight].index_select(axis, units)
        if axis == 0:
            bias = prefix + name + ".bias"
            result[bias] = weights[bias].index_select(0, units)
    for which in ("query", "key", "value"):
        inputs = getattr(layer, f"{which}_inputs")
        if inputs is not None:
            name = f"{prefix}attention.self.{which}."
            result[name + "inputs"] = torch.tensor(inputs, dtype=torch.long, device=device)
            result[name + "weight"] = result[name + "weight"][:, result[name + "inputs"]]
    return result

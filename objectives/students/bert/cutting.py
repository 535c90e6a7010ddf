"""Cut an unpruned classifier to a smaller model, and read the widths of either."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import BertConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.initialization import no_init_weights

from objectives.students.bert.architecture import BertArchitecture, BertShape, LayerUnits, Widths
from objectives.students.bert.linears import INPUTS, LINEARS, PER_HEAD, POSITION_BIAS
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)

FOREIGN = ("auto_map", "custom_pipelines", "quantization_config", "transformers_weights")
"""Entries of a config.json about code and other weights, of which a cut model has none."""


def count_labels(config: PreTrainedConfig) -> int:
    """Number of classes; transformers types it as optional."""
    assert config.num_labels is not None
    return config.num_labels


def shape_of(config: PreTrainedConfig) -> BertShape:
    """Read the shape of an unpruned BERT classifier."""
    return BertShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        labels=count_labels(config),
        embedding=getattr(config, "embedding_size", None),
        buckets=getattr(config, "position_buckets", None),
    )


def widths_of(config: BertConfig) -> tuple[Widths[int], ...]:
    """Widths of each layer of a classifier, cut or not."""
    if isinstance(config, PrunedBertConfig):
        return tuple(_widths(layer) for layer in config.of_layers())
    shape = shape_of(config)
    return BertArchitecture.full(shape).widths(shape)


def _widths(layer: PrunedBertConfig) -> Widths[int]:
    heads = layer.num_attention_heads
    inputs = layer.hidden_size if heads else 0
    return Widths(
        heads=heads,
        query_key=heads * (layer.qk_head_dim or layer.head_dim),
        value=heads * (layer.v_head_dim or layer.head_dim),
        query_inputs=layer.query_inputs or inputs,
        key_inputs=layer.key_inputs or inputs,
        value_inputs=layer.value_inputs or inputs,
        ffn=layer.intermediate_size,
        layers=0 if layer.dropped else 1,
    )


def cut(
    weights: Mapping[str, Tensor], config: BertConfig, architecture: BertArchitecture
) -> PrunedBertForSequenceClassification:
    """Cut the weights of a classifier to a smaller one, in eval mode. UserError if it misfits."""
    shape = shape_of(config)
    architecture.check(shape)
    left_out = ("model_type", "architectures", "per_layer_config", *FOREIGN)
    fields = {name: value for name, value in config.to_dict().items() if name not in left_out}
    sizes: dict[int, dict[str, int]] = {}  # silent on what is whole
    for number, layer in enumerate(architecture.layers):
        per_head = {"qk_head_dim": layer.query_key, "v_head_dim": layer.value}
        inputs = {name: getattr(layer, name) for name in INPUTS}
        sizes[number] = {
            "num_attention_heads": len(layer.heads),
            "intermediate_size": len(layer.ffn),
            **{name: len(rows[0]) for name, rows in per_head.items() if rows is not None},
            **{name: len(units) for name, units in inputs.items() if units is not None},
            **({"dropped": True} if layer.dropped else {}),
        }
    if architecture.order is not None:
        fields["sublayers"] = architecture.order
    fields |= {"head_dim": shape.head_dim, "per_layer_config": sizes}
    pruned_config = PrunedBertConfig.from_dict(fields)
    # Weights drawn at random would take longer than all else, for nothing.
    with no_init_weights(), next(iter(weights.values())).device:
        model = PrunedBertForSequenceClassification(pruned_config)
    state = dict(weights)
    for number, layer in enumerate(architecture.layers):
        if not layer.dropped:
            state |= _cut_layer(weights, f"bert.encoder.layer.{number}.", layer, shape.head_dim)
    model.load_state_dict({name: state[name].detach() for name in model.state_dict()})
    model.train(False)
    return model


def _cut_layer(
    weights: Mapping[str, Tensor], prefix: str, layer: LayerUnits, head_dim: int
) -> dict[str, Tensor]:
    """Weights of a layer that change their shape, and the buffers that it gains."""
    device = weights[prefix + "output.dense.weight"].device

    def kept(axis: str) -> Tensor | None:
        """Kept indices along an axis; None if all stay."""
        indices = getattr(layer, axis, None)
        if axis in PER_HEAD:
            rows = (range(head_dim),) * len(layer.heads) if indices is None else indices
            of_heads = zip(layer.heads, rows, strict=True)
            indices = [head * head_dim + dimension for head, row in of_heads for dimension in row]
        return None if indices is None else torch.tensor(indices, dtype=torch.long, device=device)

    result = {}
    for name, outputs, inputs in LINEARS:
        weight, bias = (f"{prefix}{name}.{which}" for which in ("weight", "bias"))
        rows, columns = kept(outputs), kept(inputs)
        result[weight] = weights[weight]
        if rows is not None:
            result[weight] = result[weight].index_select(0, rows)
            result[bias] = weights[bias].index_select(0, rows)
        if columns is not None:
            result[weight] = result[weight].index_select(1, columns)
            if inputs in INPUTS:
                result[f"{prefix}{name}.inputs"] = columns
    bias = f"{prefix}{POSITION_BIAS.name}.weight"
    if bias in weights:
        result[bias] = weights[bias][list(layer.heads)]
    return result

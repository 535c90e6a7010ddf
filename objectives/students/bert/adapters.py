"""Adapters that turn classifiers which compute what BERT does into BERTs.

Three differences stand in the configuration: `pooler_act`, `embedding_size` and `position_buckets`.
Checked against transformers 5.23; tests hold that logits agree. Dropout stays BERT's: a teacher is
fine-tuned before it is adapted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.initialization import no_init_weights
from transformers.models.bert.modeling_bert import BertSelfAttention

from objectives.students.bert.linears import POSITION_BIAS
from objectives.students.bert.position_bias import PositionBias, buckets_of
from objectives.students.bert.pruned_bert import embeddings_of, pooler_of

_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("classifier_dropout", "max_position_embeddings", "type_vocab_size", "layer_norm_eps"),
    *("initializer_range", "pad_token_id", "id2label", "label2id", "problem_type"),
)
"""Entries that are read of a configuration, by BERT's names."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Mapping of a checkpoint's fields and weights to BERT's."""

    head: tuple[str, ...]
    """Weights that only a text classifier has."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Parts of weights' names to BERT's; each is replaced in turn."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Names of fields that differ from BERT's configuration."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that the checkpoint's configuration does not have."""
    first_position: Callable[[PreTrainedConfig], int] = lambda config: 0
    """Row of the position embeddings of the first token."""

    def config(self, config: PreTrainedConfig) -> BertConfig:
        """Convert a configuration to BERT's."""
        names = {name: self.fields.get(name, name) for name in _FIELDS if name not in self.fixed}
        fields = {name: getattr(config, theirs) for name, theirs in names.items()}
        fields |= self.fixed
        fields["max_position_embeddings"] -= self.first_position(config)
        size = getattr(config, "embedding_size", config.hidden_size)
        if size != config.hidden_size:
            fields["embedding_size"] = size
        buckets = getattr(config, "relative_attention_num_buckets", None)
        if buckets is not None:
            fields["position_buckets"] = buckets
        return BertConfig(**fields)

    def state(self, weights: Mapping[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
        """Rename the weights of a classifier to BERT's names."""
        state = {}
        for name, weight in weights.items():
            for theirs, ours in self.weights.items():
                name = name.replace(theirs, ours)
            state[name] = weight
        shared = state.pop("bert.encoder.relative_attention_bias.weight", None)
        if shared is not None:  # each layer cuts its own
            for layer in range(config.num_hidden_layers):
                state[f"bert.encoder.layer.{layer}.{POSITION_BIAS.name}.weight"] = shared.T
        positions = "bert.embeddings.position_embeddings.weight"
        state[positions] = state[positions][self.first_position(config) :]
        types = "bert.embeddings.token_type_embeddings.weight"
        if types not in state:  # of a model that does not tell the second text from the first
            state[types] = torch.zeros(self.fixed["type_vocab_size"], config.hidden_size)
        return state


_DENSE_HEAD = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}
_ROBERTA = Adapter(
    head=("classifier.dense.weight", "classifier.out_proj.weight"),
    weights={"roberta.": "bert.", **_DENSE_HEAD},
    # It counts positions from the id of padding on, and tokens only: padding is on the right.
    first_position=lambda config: config.pad_token_id + 1,
)
ADAPTERS = {
    "bert": Adapter(head=("bert.pooler.dense.weight", "classifier.weight")),
    "electra": Adapter(
        head=_ROBERTA.head,
        weights={
            "electra.embeddings_project.": "bert.embeddings.project.",
            "electra.": "bert.",
            **_DENSE_HEAD,
        },
        fixed={"pooler_act": "gelu"},
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Adapter(
        head=("pre_classifier.weight", "classifier.weight"),
        weights={
            "distilbert.transformer.": "bert.encoder.",
            "distilbert.": "bert.",
            ".q_lin.": ".self.query.",
            ".k_lin.": ".self.key.",
            ".v_lin.": ".self.value.",
            ".out_lin.": ".output.dense.",
            ".sa_layer_norm.": ".attention.output.LayerNorm.",
            ".ffn.lin1.": ".intermediate.dense.",
            ".ffn.lin2.": ".output.dense.",
            ".output_layer_norm.": ".output.LayerNorm.",
            "pre_classifier.": "bert.pooler.dense.",
        },
        fields={
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "classifier_dropout": "seq_classif_dropout",
        },
        # Its tokenizer may well tell two texts apart: both get the same zeros.
        fixed={"pooler_act": "relu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    ),
    "mpnet": Adapter(
        head=_ROBERTA.head,
        weights={
            "mpnet.": "bert.",
            ".attn.q.": ".self.query.",
            ".attn.k.": ".self.key.",
            ".attn.v.": ".self.value.",
            ".attn.o.": ".output.dense.",
            ".attention.LayerNorm.": ".attention.output.LayerNorm.",
            **_DENSE_HEAD,
        },
        fixed={"classifier_dropout": None, "type_vocab_size": 2},
        first_position=lambda config: 2,  # whatever the id of padding
    ),
}
"""Adapters by `model_type`. TinyBERT, MiniLM and the like are "bert"."""


class RelativeSelfAttention(BertSelfAttention):
    """BERT's attention with relative positions."""

    def __init__(self, config: BertConfig):
        super().__init__(config)  # type: ignore[no-untyped-call]
        self.position_bias = PositionBias(config.num_attention_heads, config.position_buckets)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor]:
        buckets_SS = buckets_of(hidden_states.shape[1], hidden_states.device)
        mask = self.position_bias(attention_mask, buckets_SS)
        return super().forward(hidden_states, mask, *others, **named)


class AdaptedBert(BertForSequenceClassification):
    """BERT's classifier that heeds `pooler_act`, `embedding_size` and `position_buckets`."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert.embeddings = embeddings_of(config)
        self.bert.pooler = pooler_of(config)
        if getattr(config, "position_buckets", None) is not None:
            for layer in range(config.num_hidden_layers):
                name = f"bert.encoder.layer.{layer}.attention.self"
                self.set_submodule(name, RelativeSelfAttention(config))


def settings_of(config: BertConfig) -> dict[str, Any]:
    """Fields of a configuration that decide what a model of these weights computes and learns."""
    names = (*_FIELDS, "pooler_act", "embedding_size")
    return {name: getattr(config, name, None) for name in names}


def as_bert(model: PreTrainedModel) -> BertForSequenceClassification:
    """Convert a classifier of transformers to a BERT with the same logits; a BERT stays."""
    if isinstance(model, BertForSequenceClassification):
        return model
    adapter = ADAPTERS[model.config.model_type]
    with no_init_weights():  # they are loaded below
        adapted = AdaptedBert(adapter.config(model.config))
    adapted.load_state_dict(adapter.state(model.state_dict(), model.config))
    return adapted

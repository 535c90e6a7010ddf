"""BERT: checkpoints in, architectures, the cut model, exported folders.

Importing it lets `AutoModelForSequenceClassification` load a cut model without custom code."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from objectives.students.bert.adapters import ADAPTERS, as_bert
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.exporting import plain_bert
from objectives.students.bert.linears import INPUTS
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)
from objectives.students.bert.quantising import BITS_OF_LAYER
from objectives.students.family import Family

_PER_LAYER_NAMES = ("qk_head_dim", "v_head_dim", *INPUTS, *BITS_OF_LAYER, "dropped", "ranks")
_CUT = ("per_layer_config", "embedding_bits", "pooler_bits", "full_vocab_size", "sublayers")
"""Entries that only the configuration of a cut model has."""


class BertFamily(Family):
    """BERT's family: all costs can be predicted, and models are cut from a larger one."""

    @property
    def model_types(self) -> tuple[str, ...]:
        return (*super().model_types, *ADAPTERS)

    def adapted(self, model: PreTrainedModel) -> PreTrainedModel:
        return model if isinstance(model, self.model) else as_bert(model)

    def predicted(self, architecture: BertArchitecture, costs: Sequence[Any]) -> dict[str, float]:
        return {cost.unit: cost.exact(architecture) for cost in costs}

    def vocabulary(self, architecture: BertArchitecture) -> int | None:
        return architecture.vocabulary

    def exported(self, model: PreTrainedModel) -> PreTrainedModel:
        """Convert to transformers' BERT if all layers are alike."""
        if not isinstance(model, PrunedBertForSequenceClassification):
            return model
        plain = plain_bert(model)
        if plain is not None:
            return plain
        for name in _PER_LAYER_NAMES:  # who does not know these wants them said globally
            setattr(model.config, name, None)
        return model

    def unpruned(
        self, models: Sequence[PreTrainedModel], layers: int | None
    ) -> PreTrainedModel | None:
        """Build an unpruned model of the first model's width; None if it is no cut model."""
        config = models[0].config
        if not isinstance(config, PrunedBertConfig):
            return None
        configs = [model.config for model in models]
        pieces = max(getattr(c, "full_vocab_size", None) or c.vocab_size for c in configs)
        fields = {name: value for name, value in config.to_dict().items() if name not in _CUT}
        fields |= {"num_hidden_layers": layers or config.num_hidden_layers, "vocab_size": pieces}
        with torch.random.fork_rng(devices=[]):
            model = PrunedBertForSequenceClassification(PrunedBertConfig.from_dict(fields))
        model.train(False)
        return model


BERT = BertFamily(
    config=PrunedBertConfig,
    model=PrunedBertForSequenceClassification,
    architecture=BertArchitecture,
    noun="BERT classifier",
    origin="the model that it was cut from",
    tags=("pruning", "bert"),
)
BERT.register()

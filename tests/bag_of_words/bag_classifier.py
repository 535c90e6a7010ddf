"""A bag of words: the mean of the embeddings, a linear classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput


class BagConfig(PreTrainedConfig):
    """Its sizes."""

    model_type = "bag_of_words"

    vocab_size: int = 30522
    hidden_size: int = 64
    type_vocab_size: int = 2
    max_position_embeddings: int = 512


class BagForSequenceClassification(PreTrainedModel):
    """A classifier of texts that does not know the order of their words."""

    config_class = BagConfig

    def __init__(self, config: BagConfig):
        super().__init__(config)
        assert config.num_labels is not None
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask_BS1 = mask[..., None].float()
        mean_BD = (self.words(input_ids) * mask_BS1).sum(1) / mask_BS1.sum(1).clamp_min(1)
        return SequenceClassifierOutput(logits=self.classifier(mean_BD))

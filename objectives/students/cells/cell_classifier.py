"""The model of a genotype: embeddings, blocks of one operation each, a classifier.

A plain transformers model: `save_pretrained`, `from_pretrained`, and after
`import objectives.students.cells` `AutoModelForSequenceClassification`. Each block norms, does its
operation, and adds. The classifier reads the mean and the maximum over the tokens.

This file imports torch, transformers and `operations`: an exported model carries copies of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.dynamic_module_utils import custom_object_save
from transformers.modeling_outputs import SequenceClassifierOutput

from .operations import FAR, OPERATIONS


class CellConfig(PreTrainedConfig):
    """Sizes of a cell, and the operation of each block."""

    model_type = "cell"

    vocab_size: int = 30522
    type_vocab_size: int = 2
    hidden_size: int = 128
    operations: tuple[str, ...] | list[str] = ()
    """Names of `OPERATIONS`."""
    max_position_embeddings: int = 512
    """Tokens that it is meant to read at most. It has no positions: convolutions tell the order."""
    pad_token_id: int | None = 0


class CellBlock(nn.Module):
    """Norm, operation, residual."""

    def __init__(self, width: int, operation: str):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(width)
        self.operation = OPERATIONS[operation](width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Padding stays 0."""
        changed = self.operation(self.LayerNorm(hidden_BSD) * mask_BS1, mask_BS1)
        summed: Tensor = (hidden_BSD + changed) * mask_BS1
        return summed


class CellForSequenceClassification(PreTrainedModel):
    """A classifier of texts or pairs of texts; takes what BERT's does."""

    config_class = CellConfig
    accepts_loss_kwargs = False  # a mean over the batch, which a Trainer divides if it accumulates

    def __init__(self, config: CellConfig):
        super().__init__(config)
        assert config.num_labels is not None  # as transformers types it
        width, self.num_labels = config.hidden_size, config.num_labels
        self.words: nn.Module = nn.Embedding(config.vocab_size, width)
        self.types = nn.Embedding(config.type_vocab_size, width)
        self.blocks = nn.ModuleList(CellBlock(width, name) for name in config.operations)
        self.LayerNorm = nn.LayerNorm(2 * width)
        self.pooler = nn.Linear(2 * width, width)
        self.classifier = nn.Linear(width, self.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """As torch does it; transformers' own would draw all of them from one narrow normal."""
        if isinstance(module, nn.Linear | nn.Conv1d | nn.LayerNorm | nn.Embedding):
            module.reset_parameters()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden_BSD = self.words(input_ids) + self.types(types)
        mask_BS1 = mask[..., None].to(hidden_BSD.dtype)
        hidden_BSD = hidden_BSD * mask_BS1
        states = [hidden_BSD]
        for block in self.blocks:
            hidden_BSD = block(hidden_BSD, mask_BS1)
            states.append(hidden_BSD)
        mean_BD = hidden_BSD.sum(1) / mask_BS1.sum(1).clamp_min(1)
        highest_BD = hidden_BSD.masked_fill(mask_BS1 == 0, FAR).amax(1)
        pooled = self.pooler(self.LayerNorm(torch.cat([mean_BD, highest_BD], dim=-1)))
        logits = self.classifier(pooled.tanh())
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        asked = output_hidden_states or self.config.output_hidden_states
        output = SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=tuple(states) if asked else None
        )
        if not (self.config.return_dict if return_dict is None else return_dict):
            return output.to_tuple()
        return output

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.words = value

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers does; an exported model takes its code with it."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self.config, "auto_map", None):
            custom_object_save(self, save_directory)

"""The model of a genotype: embeddings, a graph of blocks of one operation each, a classifier. The
classifier reads the tokens by `POOLINGS`. A recurrent cell applies the graph token by token, to a
gated mean of the token and of the last output (ENAS, Pham et al. 2018; DARTS, Liu et al. 2019).
Exports carry copies of this file and of those beside it."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save
from transformers.modeling_outputs import SequenceClassifierOutput

from .formulas import Formula, is_formula
from .graph import IDENTITY, NONE, Graph
from .operations import FAR, OPERATIONS
from .recurrence import over_tokens


class CellConfig(PretrainedConfig):
    """Configuration of a cell: its sizes and its graph."""

    model_type = "cell"

    vocab_size: int = 30522
    type_vocab_size: int = 2
    hidden_size: int = 128
    operations: tuple[str, ...] | list[str] = ()
    """Operations of a chain: names of `OPERATIONS`, or formulas."""
    nodes: tuple[dict[str, Any], ...] | list[dict[str, Any]] = ()
    """Nodes of any other graph, as `Graph.to_list` has them."""
    pooling: tuple[str, ...] | list[str] = ("mean", "max")
    bigrams: int = 0
    """Rows of a table of pairs of neighbours, which share rows by a hash; 0: no table."""
    recurrent: bool = False
    reads: tuple[str, ...] | list[str] = ()
    window: int = 0
    max_position_embeddings: int = 512
    """Largest intended number of tokens. A cell has no positions: convolutions tell the order."""
    pad_token_id: int | None = 0


_PRIME = 1_000_003
"""Prime of the hash of a pair."""


class CellBlock(nn.Module):
    """Norm and operation: an edge of the graph."""

    def __init__(self, width: int, operation: str):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(width)
        formula = is_formula(operation)
        self.operation = Formula(width, operation) if formula else OPERATIONS[operation](width)

    def forward(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Apply the block; padding becomes 0."""
        changed: Tensor = self.operation(self.LayerNorm(hidden_BSD) * mask_BS1, mask_BS1)
        return changed * mask_BS1


def combined(parts: Sequence[Tensor], combination: str) -> Tensor:
    """Combine tensors of one shape by one of `graph.COMBINATIONS`."""
    if combination == "product":
        return reduce(torch.mul, parts)
    total = reduce(torch.add, parts)
    return total / len(parts) if combination == "mean" and len(parts) > 1 else total


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda hidden_BSD, mask_BS1: hidden_BSD.sum(1) / mask_BS1.sum(1).clamp_min(1),
    "max": lambda hidden_BSD, mask_BS1: hidden_BSD.masked_fill(mask_BS1 == 0, FAR).amax(1),
    "min": lambda hidden_BSD, mask_BS1: hidden_BSD.masked_fill(mask_BS1 == 0, -FAR).amin(1),
}
"""Poolings over the tokens, to (B, D)."""


class CellForSequenceClassification(PreTrainedModel):
    """Classifier of texts or pairs of texts; takes BERT's inputs."""

    config_class = CellConfig
    accepts_loss_kwargs = False  # a mean over the batch, which a Trainer divides if it accumulates

    def __init__(self, config: CellConfig):
        super().__init__(config)
        assert config.num_labels is not None  # as transformers types it
        width, self.num_labels = config.hidden_size, config.num_labels
        self.words: nn.Module = nn.Embedding(config.vocab_size, width)
        self.types = nn.Embedding(config.type_vocab_size, width)
        self.bigrams = nn.Embedding(config.bigrams, width) if config.bigrams else None
        chain = Graph.chain(config.operations)
        self.graph = Graph.from_list(config.nodes) if config.nodes else chain
        names = [name for node in self.graph.nodes for name in node.operations]
        self.blocks = nn.ModuleList(CellBlock(width, name) for name in names if name != IDENTITY)
        self.outputs = self.graph.outputs()
        self.join = nn.Linear(2 * width, 2 * width) if config.recurrent else None
        self.reads = nn.ModuleList(
            CellBlock(width, name) if name not in (IDENTITY, NONE) else nn.Identity()
            for name in config.reads
        )
        read = len(config.pooling) * width
        self.LayerNorm = nn.LayerNorm(read)
        self.pooler = nn.Linear(read, width)
        self.classifier = nn.Linear(width, self.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as torch does; transformers would draw all from one narrow normal."""
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
        hidden_BSD, mask_BS1 = self.embedded(input_ids, attention_mask, token_type_ids)
        if self.join is None:
            states = self._states(hidden_BSD, mask_BS1)
            hidden_BSD = self._output(states)
        else:
            first_BSD = hidden_BSD
            hidden_BSD = over_tokens(
                self.join,
                first_BSD,
                mask_BS1,
                lambda *given: self._output(self._states(*given)),
                self.read if self.config.reads else None,
                max(1, self.config.window),
            )
            states = [first_BSD, hidden_BSD]
        logits = self.classified(hidden_BSD, mask_BS1)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        asked = output_hidden_states or self.config.output_hidden_states
        output = SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=tuple(states) if asked else None
        )
        if not (self.config.return_dict if return_dict is None else return_dict):
            return output.to_tuple()
        return output

    def _states(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> list[Tensor]:
        states, blocks = [hidden_BSD], iter(self.blocks)
        for node in self.graph.nodes:
            parts = [
                states[state] if name == IDENTITY else next(blocks)(states[state], mask_BS1)
                for state, name in node.edges
            ]
            states.append(combined(parts, node.combination))
        return states

    def _output(self, states: Sequence[Tensor]) -> Tensor:
        return combined([states[state] for state in self.outputs], "mean")

    def read(self, place: int, state_B1D: Tensor, mask_B11: Tensor) -> Tensor | None:
        """Apply the operation at an index of `READS`; None if there is none."""
        if self.config.reads[place] == NONE:
            return None
        block = self.reads[place]
        unchanged = isinstance(block, nn.Identity)
        read: Tensor = state_B1D if unchanged else block(state_B1D, mask_B11)
        return read

    def embedded(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """First state (B, S, D), 0 at padding, and the mask (B, S, 1) of 1 and 0."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden_BSD = self.words(input_ids) + self.types(types)
        if self.bigrams is not None:
            before = nn.functional.pad(input_ids[:, :-1], (1, 0))
            pairs = (_PRIME * before + input_ids) % self.bigrams.num_embeddings
            hidden_BSD = hidden_BSD + self.bigrams(pairs)
        mask_BS1 = mask[..., None].to(hidden_BSD.dtype)
        return hidden_BSD * mask_BS1, mask_BS1

    def classified(self, hidden_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Logits (B, C) of a last state."""
        read = [POOLINGS[name](hidden_BSD, mask_BS1) for name in self.config.pooling]
        logits: Tensor = self.classifier(self.pooler(self.LayerNorm(torch.cat(read, -1))).tanh())
        return logits

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.words = value

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does; an exported model takes its code along."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self.config, "auto_map", None):
            custom_object_save(self, save_directory)

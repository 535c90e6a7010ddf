"""Weights of few bits: a scale for each row, and the quantisers that make its codes. Of 8 or 4 bits
scale = c max |w| / (2^(B-1) - 1), code = round(w / scale), c of `_CLIPS` by least squared error. Of
2 (Li et al. 2016): a weight stays where |w| > 0.7 mean |w|, as its sign and the mean of those that
stay. Of 1 (Rastegari et al. 2016): mean |w| and its sign."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.packing import LARGEST, PackedEmbedding, PackedLinear, pack
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)

WORDS = "bert.embeddings.word_embeddings.weight"
ROUNDED_EMBEDDINGS = (WORDS, "bert.embeddings.position_embeddings.weight")
"""Names of the embeddings that may be quantised."""
BITS_OF_LAYER = ("weight_bits", "halves", "input_bits", "attention_bits")
"""Bits that a layer of an architecture and of a configuration has."""
_OF_MODEL = ("embedding_bits", "pooler_bits", "pooler_halves")
"""Entries on bits of an architecture and a configuration outside the layers."""
_THRESHOLD = 0.7
"""Threshold as a share of the mean of |w|: below it a ternary weight is 0."""
_CLIPS = {8: (1.0,), 4: (1.0, 0.8, 0.6)}
"""Candidates for the largest code, as shares of max |w|. Six shares leave 2 to 6% less error."""


def codes_of(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes, (..., rows, columns), and scales, (..., rows, 1); a column of zeros alone pads."""
    sizes = weight.abs()
    if bits > 2:
        step = sizes.amax(-1, keepdim=True) / LARGEST[bits]
        step = step.clamp_min(torch.finfo(step.dtype).tiny)
        scales = torch.stack([share * step for share in _CLIPS[bits]])
        errors = [(_codes(weight, s, bits) * s - weight).square().sum(-1, True) for s in scales]
        scale = scales.gather(0, torch.stack(errors).argmin(0, True))[0]
        return _codes(weight, scale, bits), scale
    real = sizes.amax(-2, keepdim=True) > 0
    mean = sizes.sum(-1, keepdim=True) / real.sum(-1, keepdim=True).clamp_min(1)
    if bits == 1:
        return torch.where(weight > 0, 1.0, -1.0) * real, mean
    stays = sizes > _THRESHOLD * mean
    scale = (sizes * stays).sum(-1, keepdim=True) / stays.sum(-1, keepdim=True).clamp_min(1)
    return weight.sign() * stays, scale


def _codes(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    return (weight / scale).round().clamp(-LARGEST[bits], LARGEST[bits])


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Quantise and dequantise a weight (..., rows, columns)."""
    codes, scale = codes_of(weight, bits)
    return codes * scale


@torch.no_grad()
def quantised(
    model: PrunedBertForSequenceClassification, architecture: BertArchitecture
) -> PrunedBertForSequenceClassification:
    """Pack the model to the bits of its architecture, if any, on the CPU in eval mode."""
    # The pooler has the bits of the layer that has most; classifier, biases, norms and token types
    # stay. Weights in halves have twice the rows: see `splitting`.
    if not architecture.has_bits:
        return model
    of_model = {name: getattr(architecture, name) for name in _OF_MODEL}
    layers = [{n: getattr(layer, n) for n in BITS_OF_LAYER} for layer in architecture.layers]
    packed = emptied(model.config, of_model, layers)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    for name, module in packed.named_modules():
        if isinstance(module, PackedLinear | PackedEmbedding):
            codes, scale = codes_of(state.pop(f"{name}.weight"), module.bits)
            state |= {f"{name}.codes": pack(codes, module.bits), f"{name}.scale": scale}
    packed.load_state_dict(state)
    return packed


def round_embeddings(model: PreTrainedModel, bits: int | None) -> None:
    """Quantise and dequantise the embeddings of a float32 model; None leaves them."""
    if bits is not None:
        for name in ROUNDED_EMBEDDINGS:
            weight = model.get_parameter(name)
            weight.data = rounded(weight.data, bits)


def keep_pieces(model: PrunedBertForSequenceClassification, pieces: Sequence[int]) -> None:
    """Keep the word embeddings of these ids, ascending, padding's included: indices become ids."""
    weight = model.get_parameter(WORDS).detach()
    beyond = max(0, pieces[-1] + 1 - len(weight))  # added tokens that no text has, without a row
    weight = nn.functional.pad(weight, (0, 0, 0, beyond))
    rows = weight[torch.tensor(pieces, device=weight.device)]
    padding = pieces.index(model.config.pad_token_id or 0)
    words = nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=padding)
    model.set_input_embeddings(words)
    model.config.full_vocab_size = model.config.full_vocab_size or model.config.vocab_size
    model.config.vocab_size, model.config.pad_token_id = len(pieces), padding


@torch.no_grad()
def dense(model: PreTrainedModel) -> PreTrainedModel:
    """Unpack codes, if any, to float32 weights, for training and other runtimes."""
    # What enters the weights is not rounded.
    if not any(isinstance(module, PackedLinear | PackedEmbedding) for module in model.modules()):
        return model
    assert isinstance(model, PrunedBertForSequenceClassification)
    layers = [dict.fromkeys(BITS_OF_LAYER)] * model.config.num_hidden_layers
    unpacked = emptied(model.config, dict.fromkeys(_OF_MODEL), layers)
    state = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear | PackedEmbedding):
            state[f"{name}.weight"] = module.weight
            del state[f"{name}.codes"], state[f"{name}.scale"]
    unpacked.load_state_dict(state)
    return unpacked


def rounds_inputs(model: PreTrainedModel) -> bool:
    """Whether inputs of its weights or its attention are quantised, which `dense` leaves out."""
    if not isinstance(model, PrunedBertForSequenceClassification):
        return False
    return any(layer.input_bits or layer.attention_bits for layer in model.config.of_layers())


def emptied(
    config: BertConfig, changes: Mapping[str, int | None], of_layers: Sequence[Mapping[str, Any]]
) -> PrunedBertForSequenceClassification:
    """Make a model of this configuration with other bits or ranks, in eval mode, weights unset."""

    def changed(fields: Mapping[str, Any], changes: Mapping[str, int | None]) -> dict[str, Any]:
        return {name: value for name, value in {**fields, **changes}.items() if value is not None}

    fields = config.to_dict()
    sizes = fields.pop("per_layer_config", None) or {}
    layers = {n: changed(sizes.get(str(n), {}), entry) for n, entry in enumerate(of_layers)}
    new = PrunedBertConfig.from_dict({**changed(fields, changes), "per_layer_config": layers})
    with no_init_weights():
        model = PrunedBertForSequenceClassification(new)
    model.train(False)
    return model

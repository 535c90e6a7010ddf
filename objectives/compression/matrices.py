"""Few bits by reconstruction of one weight matrix after another (REM, in Bai et al. 2022).

Each matrix learns, straight through its rounding, to give on what reaches it in the rounded model
what the float one gives there: least |W^ a^ + b - W a - b_0|^2, a^ rounded too.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.packing import rounded_inputs
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import round_embeddings, rounded
from objectives.text.data import Batch
from objectives.training.optimisation import linear_schedule

_LAYER = "bert.encoder.layer."


def matrices(
    model: PrunedBertForSequenceClassification, architecture: BertArchitecture
) -> list[list[str]]:
    """Of a model that is to have these bits, the weights of few bits in each layer."""
    return [
        [
            linear.name
            for linear in LINEARS
            if units.weight_bits
            and model.get_parameter(f"{_LAYER}{number}.{linear.name}.weight").numel()
        ]
        for number, units in enumerate(architecture.layers)
    ]


def matrix_by_matrix(
    model: PrunedBertForSequenceClassification,
    architecture: BertArchitecture,
    batches: Sequence[Batch],
    order: Sequence[int],
    learning_rate: float,
) -> Iterator[tuple[int, Tensor]]:
    """Teach the weights of a float model, in place, the bits that the architecture says.

    Each matrix takes a step on each batch of the `order`; pooler, norms and classifier stay. What
    reaches one matrix lies in memory, of the tokens of all batches. In float32.

    Yields for each step the layer and the loss before it.
    """
    example = copy.deepcopy(model).requires_grad_(False)
    round_embeddings(model, architecture.embedding_bits)
    seen = [batch.attention_mask for batch in batches]
    with torch.no_grad():
        states = [
            [one.bert["embeddings"](b.input_ids, b.token_type_ids) for b in batches]
            for one in (example, model)
        ]
    for number, names in enumerate(matrices(model, architecture)):
        layers = [one.get_submodule(f"{_LAYER}{number}") for one in (example, model)]
        bits, into = (
            getattr(architecture.layers[number], n) for n in ("weight_bits", "input_bits")
        )
        learnt, hooks = [], []
        for name in names:
            wanted, own = (cast("nn.Linear", layer.get_submodule(name)) for layer in layers)
            pairs = [
                _reaching(*one, seen) for one in zip(layers, (wanted, own), states, strict=True)
            ]
            optimizer = torch.optim.Adam(own.parameters(), learning_rate, fused=True)
            schedule = linear_schedule(optimizer, len(order))
            for place in order:
                through = own.weight + (rounded(own.weight, bits) - own.weight).detach()
                given = nn.functional.linear(_few(pairs[1][place], into), through, own.bias)
                aim = nn.functional.linear(pairs[0][place], wanted.weight, wanted.bias)
                loss = (given - aim).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                yield number, loss.detach()
            learnt.append((own, own.weight.data))
            own.weight.data = rounded(own.weight.data, bits)
            hooks.append(own.register_forward_pre_hook(partial(_rounds, into)))
        with torch.no_grad():
            states = [_through(*one, seen) for one in zip(layers, states, strict=True)]
        for hook in hooks:
            hook.remove()
        for own, weight in learnt:
            own.weight.data = weight


def _few(inputs: Tensor, bits: int | None) -> Tensor:
    return inputs if bits is None else rounded_inputs(inputs, bits)


def _rounds(bits: int | None, linear: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """What a linear is given, rounded where it reads."""
    read = getattr(linear, "inputs", slice(None))
    given = inputs[0].clone()
    given[..., read] = _few(given[..., read], bits)
    return given


def _through(layer: nn.Module, states: Sequence[Tensor], seen: Sequence[Tensor]) -> list[Tensor]:
    if isinstance(layer, nn.Identity):  # it is dropped
        return list(states)
    return [layer(x, mask[:, None, None]) for x, mask in zip(states, seen, strict=True)]


@torch.no_grad()
def _reaching(
    layer: nn.Module, linear: nn.Module, states: Sequence[Tensor], seen: Sequence[Tensor]
) -> list[Tensor]:
    """What a linear of a layer reads, of the tokens of each batch: (tokens, inputs)."""
    found: list[Tensor] = []
    read = getattr(linear, "inputs", slice(None))
    hook = linear.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0][..., read]))
    _through(layer, states, seen)
    hook.remove()
    return [one[mask] for one, mask in zip(found, seen, strict=True)]

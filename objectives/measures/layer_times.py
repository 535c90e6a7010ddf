"""How long a layer takes, by its number of heads and FFN neurons: measured on layers of cut models.

In eager torch a layer is called alone. Other engines run whole models, so there a layer takes what
a model of some layers takes longer than one of none; and as the two halves of a layer are done one
after the other, no more than one is timed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import BertForSequenceClassification
from transformers.initialization import no_init_weights

from objectives.bert.architecture import BertArchitecture, BertShape, LayerUnits
from objectives.bert.cutting import cut, shape_of
from objectives.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
    PrunedBertLayer,
)
from objectives.bert.student import keep_layers
from objectives.device import to_device
from objectives.engines.names import Engine
from objectives.engines.serving import serve
from objectives.engines.timing import WARM_UPS, in_turns, milliseconds, tokens
from objectives.session import Session

_REPEATS = 15
_LAYERS = 3
"""Of a model that is timed for the sake of its layers."""


def layer_times(
    model: BertForSequenceClassification,
    heads: Sequence[int],
    ffn: Sequence[int],
    *,
    batch: int,
    seq_len: int,
    session: Session,
    engine: Engine,
) -> tuple[list[list[float]], float]:
    """Milliseconds of one layer, a row for each number of heads and a column for each of neurons,
    both from 0 on; and of all else in a model. Medians of repeats in which all take turns."""
    measure = _alone if engine == "eager" else _in_models
    table, rest = measure(model, heads, ffn, batch, seq_len, session, engine)
    return monotone(table).tolist(), rest


def monotone(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest of the simple fits that never fall along either axis; one that fits is kept.

    It lies midway between the least table above and the greatest table below that never fall.
    """
    above, below = table, table
    for axis in (0, 1):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return (above + below) / 2


def _in_models(
    model: BertForSequenceClassification,
    heads: Sequence[int],
    ffn: Sequence[int],
    batch: int,
    seq_len: int,
    session: Session,
    engine: Engine,
) -> tuple[NDArray[np.float64], float]:
    """By whole models, ready to run in the engine: of layers that have heads alone, or neurons
    alone, or neither; and without any layer."""
    whole = keep_layers(model, (0,) * _LAYERS)
    cells = [*((kept, 0) for kept in heads), *((0, kept) for kept in ffn[1:])]
    models = [_cut_alike(whole, *cell) for cell in cells] + [
        _cut_alike(keep_layers(model, ()), 0, 0)
    ]
    session.progress.begin("measure latency", len(models) + WARM_UPS + _REPEATS)
    runs = []
    with TemporaryDirectory() as scratch:
        for number, one in enumerate(models):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            (served,) = serve(
                engine, {str(folder): one}, folder, torch.get_num_threads(), session.device
            )
            runs.append(served.run)
            session.progress.advance()
        inputs = tokens(model.config.vocab_size, batch, seq_len)
        times = in_turns(engine, runs, inputs, _REPEATS, session.device, session.progress.advance)
    *own, rest = np.median(times, axis=0)
    layers = (np.array(own) - rest) / _LAYERS
    of_heads, of_ffn = layers[: len(heads)], layers[[0, *range(len(heads), len(layers))]]
    return of_heads[:, None] + of_ffn - layers[0], float(rest)


def _cut_alike(
    model: BertForSequenceClassification, heads: int, ffn: int
) -> PrunedBertForSequenceClassification:
    """The model whose layers all keep the first of their heads and neurons, so many."""
    units = LayerUnits(tuple(range(heads)), tuple(range(ffn)))
    layers = (units,) * model.config.num_hidden_layers
    return cut(model.state_dict(), model.config, BertArchitecture(layers))


@torch.no_grad()
def _alone(
    model: BertForSequenceClassification,
    heads: Sequence[int],
    ffn: Sequence[int],
    batch: int,
    seq_len: int,
    session: Session,
    engine: Engine,
) -> tuple[NDArray[np.float64], float]:
    """In eager torch: of each layer of the grid by itself, of the rest."""
    device, progress, shape = session.device, session.progress, shape_of(model.config)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(batch, seq_len, shape.hidden, generator=generator).to(device)
    mask = torch.ones(batch, 1, 1, seq_len, dtype=torch.bool, device=device)
    words = torch.ones(batch, seq_len, dtype=torch.long, device=device)
    layers = [
        _layer(model, shape, number, neurons, device, generator)
        for number in heads
        for neurons in ffn
    ]

    pooler = model.bert.pooler
    assert pooler is not None

    def rest() -> None:
        model.classifier(pooler(model.bert.embeddings(input_ids=words)))

    def forward(layer: nn.Module) -> Callable[[], None]:
        return lambda: layer(hidden, mask)

    timed = [rest, *map(forward, layers)]
    progress.begin("measure latency", WARM_UPS + _REPEATS)
    rounds = []
    for _ in range(WARM_UPS + _REPEATS):
        rounds.append([milliseconds(run, device) for run in timed])
        progress.advance()
    of_rest, *of_layers = np.median(rounds[WARM_UPS:], axis=0)
    return np.array(of_layers).reshape(len(heads), len(ffn)), float(of_rest)


def _layer(
    model: BertForSequenceClassification,
    shape: BertShape,
    heads: int,
    ffn: int,
    device: str,
    generator: torch.Generator,
) -> nn.Module:
    """A layer of a cut model, with weights of a common size: tiny ones would be slow."""
    own = {name: value for name, value in model.config.to_dict().items() if name != "model_type"}
    own |= {"num_attention_heads": heads, "intermediate_size": ffn, "head_dim": shape.head_dim}
    config = PrunedBertConfig.from_dict(own)
    config._attn_implementation = model.config._attn_implementation
    with no_init_weights():  # they are drawn below
        layer = PrunedBertLayer(config)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.02, generator=generator)
    return to_device(layer, device).eval()

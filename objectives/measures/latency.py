"""Milliseconds as a cost: a table of one layer's time, measured once a run on its own device.

Whole models are timed, as engines run no others: a layer takes what a model of some layers takes
longer than one of none. As its two halves follow one another, models of heads alone and of FFN
neurons alone, a few numbers of each, say all; between these the time is interpolated.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import BertForSequenceClassification, PreTrainedModel

from objectives.cache import atomic_write, content_key, read_cached
from objectives.engines.names import Engine
from objectives.engines.serving import make_runnable
from objectives.engines.timing import WARM_UPS, in_turns, tokens
from objectives.measures.cost import Cost, Count, check_priced
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture, LayerUnits, Widths
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.linears import AXES
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import keep_pieces
from objectives.students.bert.student import keep_layers

_REPEATS = 15
_LAYERS = 3
"""Layers of a model that is timed to find the time of one layer."""
_PIECES = 1000
_STEPS = 4
"""A width is timed at these many equal steps, and at 0 and 1: a first unit costs the most."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a timed forward pass of `batch` sequences, beside the model."""

    device: str
    """"cpu", or the name of the GPU."""
    threads: int | None
    """Threads that one operation uses on the CPU; None on a GPU."""
    batch: int
    seq_len: int
    engine: Engine = "eager"

    def __str__(self) -> str:
        engine = "" if self.engine == "eager" else f"{self.engine}-"  # as units say it since ever
        threads = "" if self.threads is None else f"-{self.threads}threads"
        return f"{engine}{self.device}{threads}-b{self.batch}-s{self.seq_len}"


@dataclass(frozen=True)
class Latency(Cost):
    """Milliseconds of a batch's forward pass: bilinear between the widths of a monotone table."""

    priced: ClassVar[tuple[str, ...]] = ("heads", "ffn", "layers")

    conditions: Conditions
    heads: tuple[int, ...]
    ffn: tuple[int, ...]
    """Numbers of heads, and of FFN neurons, that were timed: ascending, from 0 to all."""
    milliseconds: tuple[tuple[float, ...], ...]
    """Milliseconds of one layer: a row for each number of heads, a column for each of neurons."""
    rest: float
    """Milliseconds of embeddings, pooler and classifier together."""

    @property
    def unit(self) -> str:
        return f"ms@{self.conditions}"

    @property
    def fixed(self) -> float:
        return self.rest

    def layer(self, widths: Widths[Count]) -> Count:
        if isinstance(widths.heads, Tensor):
            return self._interpolated(widths.heads, widths.ffn)
        numbers = torch.tensor((widths.heads, widths.ffn), dtype=torch.float64)
        return self._interpolated(*numbers).item()

    def exact(self, architecture: BertArchitecture) -> float:
        """Predict milliseconds. Raises UserError if units without a price were cut."""
        cut = (
            space
            for space in ("qk", "v", "input")
            if any(getattr(layer, axis) for layer in architecture.layers for axis in AXES[space])
        )
        low_rank = ("low rank",) if architecture.low_rank else ()
        check_priced(self.unit, self.priced, (*cut, *low_rank))
        return super().exact(architecture)

    def _interpolated(self, heads: Tensor, ffn: Tensor) -> Tensor:
        device = (heads if heads.ndim else ffn).device
        table = _constant(self.milliseconds, device)
        of_heads, of_ffn = _weights(heads, self.heads, device), _weights(ffn, self.ffn, device)
        return ((of_heads @ table) * of_ffn).sum(-1)


@cache
def _constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """Numbers on a device, cached there, as each step needs them several times."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def _weights(width: Tensor, grid: tuple[int, ...], device: torch.device) -> Tensor:
    """Weights of the two neighbours of a width in the grid: (...) to (..., len(grid))."""
    points = _constant(grid, device)
    width = width.to(device).double()[..., None]
    interval = torch.searchsorted(points[1:-1], width.detach().contiguous())
    numbers = torch.arange(len(grid) - 1, device=device)
    # Of each interval, what lies below the width.
    share = torch.where(
        numbers == interval, (width - points[:-1]) / points.diff(), (numbers < interval).double()
    )
    return functional.pad(share, (1, 0), value=1) - functional.pad(share, (0, 1))


def load_latency(
    model: BertForSequenceClassification,
    *,
    batch: int,
    seq_len: int,
    session: Session,
    engine: Engine = "eager",
) -> Latency:
    """Latency of an unpruned model and of what is cut from it, by a table that the cache keeps."""
    shape = shape_of(model.config)
    device, threads = session.device, None
    if torch.device(device).type == "cuda":
        device = torch.cuda.get_device_name(device).replace(" ", "-")
    else:
        threads = torch.get_num_threads()
    conditions = Conditions(device, threads, batch, seq_len, engine)
    sizes = {name: n for name, n in asdict(replace(shape, layers=1)).items() if n is not None}
    ingredients = {
        **sizes,
        **asdict(conditions),
        "activation": model.config.hidden_act,
        "attention": model.config._attn_implementation,
        "torch": torch.__version__,
    }
    if engine == "eager":
        del ingredients["engine"]  # tables of before there was a choice
    elif engine.startswith("onnxruntime"):
        ingredients["onnxruntime"] = version("onnxruntime")
    file = session.cache / f"latency-{content_key(ingredients)}.json"
    table: dict[str, Any] | None = read_cached(
        file, lambda file: json.loads(file.read_bytes())["table"], session.progress.note
    )
    if table is None:
        table = _measure(model, conditions, session)
        with atomic_write(file) as unfinished:
            unfinished.write_text(json.dumps({**ingredients, "table": table}, indent=1))
    rows = tuple(map(tuple, table["milliseconds"]))
    return Latency(
        shape, conditions, tuple(table["heads"]), tuple(table["ffn"]), rows, table["rest"]
    )


def milliseconds_beside(
    model: PreTrainedModel, reference: BertForSequenceClassification, latency: Latency
) -> float:
    """Latency of a model that no table predicts, by its time beside that of the unpruned one."""
    device = str(next(reference.parameters()).device)
    times = _times([model, reference], latency.conditions, device)
    return float(np.median(times[:, 0] / times[:, 1])) * latency.full


def _times(
    models: Sequence[PreTrainedModel],
    conditions: Conditions,
    device: str,
    advance: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """Milliseconds (rounds, models); `advance` is called for each model and each round."""
    engine, threads, runs = conditions.engine, torch.get_num_threads(), []
    with TemporaryDirectory() as scratch:
        for number, model in enumerate(models):
            folder = Path(scratch, str(number))
            folder.mkdir()
            (ready,) = make_runnable(engine, {str(folder): model}, folder, threads, device)
            runs.append(ready.run)
            advance()
        vocabulary = min(model.config.vocab_size for model in models)
        inputs = tokens(vocabulary, conditions.batch, conditions.seq_len)
        return in_turns(engine, runs, inputs, _REPEATS, device, advance)


def _grid(size: int) -> list[int]:
    return sorted({0, 1, *(round(size * step / _STEPS) for step in range(1, _STEPS + 1))})


def monotone(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make a table monotone along both axes: midway between the nearest ones above and below."""
    above, below = table, table
    for axis in (0, 1):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return (above + below) / 2


def _measure(
    model: BertForSequenceClassification, conditions: Conditions, session: Session
) -> dict[str, Any]:
    """Table of the milliseconds of one layer by heads and neurons, and of all else in a model."""
    shape = shape_of(model.config)
    heads, ffn = _grid(shape.heads), _grid(shape.ffn)
    full, none = keep_layers(model, (0,) * _LAYERS), keep_layers(model, ())
    cells = [*((units, 0) for units in heads), *((0, units) for units in ffn[1:])]
    models = [*(_cut_alike(full, *cell) for cell in cells), _cut_alike(none, 0, 0)]
    session.progress.begin("measure latency", len(models) + WARM_UPS + _REPEATS)
    times = _times(models, conditions, session.device, session.progress.advance)
    *stacks, rest = np.median(times, axis=0)
    layers = (np.array(stacks) - rest) / _LAYERS
    of_heads, of_ffn = layers[: len(heads)], layers[[0, *range(len(heads), len(layers))]]
    table = of_heads[:, None] + of_ffn - layers[0]
    table = monotone(table.clip(min=0))  # beside noise an empty layer is small
    return {"heads": heads, "ffn": ffn, "milliseconds": table.tolist(), "rest": float(rest)}


def _cut_alike(
    model: BertForSequenceClassification, heads: int, ffn: int
) -> PrunedBertForSequenceClassification:
    """Model whose layers keep their first heads and neurons; few word pieces, to save memory."""
    units = LayerUnits(tuple(range(heads)), tuple(range(ffn)))
    layers = (units,) * model.config.num_hidden_layers
    smaller = cut(model.state_dict(), model.config, BertArchitecture(layers))
    pieces = range(min(_PIECES, smaller.config.vocab_size))
    keep_pieces(smaller, sorted({smaller.config.pad_token_id or 0, *pieces}))
    return smaller

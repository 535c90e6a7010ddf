"""Milliseconds as a cost: a table of one layer's time, measured once a run on its own device.

The layers that are timed are those of cut models, of a few numbers of heads and FFN neurons;
between these the time is interpolated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertForSequenceClassification
from transformers.initialization import no_init_weights

from objectives.bert.architecture import BertArchitecture, BertShape, Widths
from objectives.bert.cutting import shape_of
from objectives.bert.linears import AXES
from objectives.bert.pruned_bert import PrunedBertConfig, PrunedBertLayer
from objectives.cache import content_key, made_anew, written_whole
from objectives.device import to_device
from objectives.errors import first_line
from objectives.measures.cost import Cost, Count, check_priced
from objectives.progress import Progress
from objectives.session import Session

_WARM_UPS = 3
_REPEATS = 15
_STEPS = 4
"""A width is timed at these many equal steps, and at 0 and 1: a first unit costs the most."""


@dataclass(frozen=True)
class Conditions:
    """What a time depends on beside the model."""

    device: str
    """"cpu", or the name of the GPU."""
    threads: int | None
    """Threads that one operation uses on the CPU; None on a GPU."""
    batch: int
    """Sequences in one forward pass."""
    seq_len: int
    """Tokens in each of them."""

    @classmethod
    def here(cls, device: str, *, batch: int, seq_len: int) -> Conditions:
        """Those of this process on a torch device."""
        if torch.device(device).type == "cuda":
            name = torch.cuda.get_device_name(device).replace(" ", "-")
            return cls(name, None, batch, seq_len)
        return cls(device, torch.get_num_threads(), batch, seq_len)

    def __str__(self) -> str:
        threads = "" if self.threads is None else f"-{self.threads}threads"
        return f"{self.device}{threads}-b{self.batch}-s{self.seq_len}"


@dataclass(frozen=True)
class Latency(Cost):
    """Milliseconds of one forward pass of a batch, layers looked up in a table.

    Times are bilinear between the table's widths, and never fall where a width grows.
    """

    priced: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    conditions: Conditions
    heads: tuple[int, ...]
    """Numbers of heads that were timed: ascending, from 0 to all."""
    ffn: tuple[int, ...]
    """Numbers of FFN neurons that were timed: ascending, from 0 to all."""
    milliseconds: tuple[tuple[float, ...], ...]
    """Of one layer: a row for each number of heads, a column for each of neurons."""
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
        heads, ffn = (
            torch.tensor(width, dtype=torch.float64) for width in (widths.heads, widths.ffn)
        )
        return self._interpolated(heads, ffn).item()

    def exact(self, architecture: BertArchitecture) -> float:
        """Raises UserError where something else than heads and FFN neurons was cut."""
        cut = (
            space
            for space in ("qk", "v", "input")
            if any(getattr(layer, axis) for layer in architecture.layers for axis in AXES[space])
        )
        check_priced(self.unit, self.priced, tuple(cut))
        return super().exact(architecture)

    def _interpolated(self, heads: Tensor, ffn: Tensor) -> Tensor:
        device = (heads if heads.ndim else ffn).device
        table = _constant(self.milliseconds, device)
        of_heads, of_ffn = _weights(heads, self.heads, device), _weights(ffn, self.ffn, device)
        return ((of_heads @ table) * of_ffn).sum(-1)


@cache
def _constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """Numbers on a device, sent there once: a step asks for them several times."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def _weights(width: Tensor, grid: tuple[int, ...], device: torch.device) -> Tensor:
    """How much each point of the grid counts at a width: (...) to (..., len(grid)).

    The two neighbours share it; at a point of the grid that one has all.
    """
    points = _constant(grid, device)
    width = width.to(device).double()[..., None]
    interval = torch.searchsorted(points[1:-1], width.detach().contiguous())
    numbers = torch.arange(len(grid) - 1, device=device)
    # Of each interval, what lies below the width.
    share = torch.where(
        numbers == interval, (width - points[:-1]) / points.diff(), (numbers < interval).double()
    )
    one = torch.ones_like(share[..., :1])
    return torch.cat([one, share], -1) - torch.cat([share, 0 * one], -1)


def load_latency(
    model: BertForSequenceClassification,
    *,
    batch: int,
    seq_len: int,
    session: Session,
) -> Latency:
    """The latency of an unpruned model and of what is cut from it.

    The table lies in the cache, named by all that it depends on; it is measured where it does not
    lie there yet. The number of layers does not matter to it.
    """
    shape = shape_of(model.config)
    conditions = Conditions.here(session.device, batch=batch, seq_len=seq_len)
    sizes = {name: n for name, n in asdict(replace(shape, layers=1)).items() if n is not None}
    ingredients = {
        **sizes,
        **asdict(conditions),
        "activation": model.config.hidden_act,
        "attention": model.config._attn_implementation,
        "torch": torch.__version__,
    }
    file = session.cache / f"latency-{content_key(ingredients)}.json"
    table = _kept(file, session.progress)
    if table is None:
        heads, ffn = _grid(shape.heads), _grid(shape.ffn)
        milliseconds, rest = _measure(
            model, heads, ffn, batch=batch, seq_len=seq_len, session=session
        )
        table = {"heads": heads, "ffn": ffn, "milliseconds": milliseconds, "rest": rest}
        with written_whole(file) as unfinished:
            unfinished.write_text(json.dumps({**ingredients, "table": table}, indent=1))
    return Latency(
        shape,
        conditions,
        heads=tuple(table["heads"]),
        ffn=tuple(table["ffn"]),
        milliseconds=tuple(tuple(row) for row in table["milliseconds"]),
        rest=table["rest"],
    )


def _kept(file: Path, progress: Progress) -> dict[str, Any] | None:
    try:
        table: dict[str, Any] = json.loads(file.read_bytes())["table"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        progress.note(made_anew(file, first_line(error)))
        return None
    return table


def monotone(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest of the simple fits that never fall along either axis; one that fits is kept.

    It lies midway between the least table above and the greatest table below that never fall.
    """
    above, below = table, table
    for axis in (0, 1):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return (above + below) / 2


def _grid(size: int) -> list[int]:
    return sorted({0, 1, *(round(size * step / _STEPS) for step in range(1, _STEPS + 1))})


@torch.no_grad()
def _measure(
    model: BertForSequenceClassification,
    heads: Sequence[int],
    ffn: Sequence[int],
    *,
    batch: int,
    seq_len: int,
    session: Session,
) -> tuple[list[list[float]], float]:
    """Medians of interleaved repeats, in milliseconds: of each layer of the grid, of the rest.

    Interleaved, so that a slow moment of the machine is everybody's.
    """
    device, progress, shape = session.device, session.progress, shape_of(model.config)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(batch, seq_len, shape.hidden, generator=generator).to(device)
    mask = torch.ones(batch, 1, 1, seq_len, dtype=torch.bool, device=device)
    tokens = torch.ones(batch, seq_len, dtype=torch.long, device=device)
    layers = [
        _layer(model, shape, number, neurons, device, generator)
        for number in heads
        for neurons in ffn
    ]

    pooler = model.bert.pooler
    assert pooler is not None

    def rest() -> None:
        model.classifier(pooler(model.bert.embeddings(input_ids=tokens)))

    def forward(layer: nn.Module) -> Callable[[], None]:
        return lambda: layer(hidden, mask)

    timed = [rest, *map(forward, layers)]
    progress.begin("measure latency", _WARM_UPS + _REPEATS)
    rounds = []
    for _ in range(_WARM_UPS + _REPEATS):
        rounds.append([milliseconds(run, device) for run in timed])
        progress.advance()
    of_rest, *of_layers = np.median(rounds[_WARM_UPS:], axis=0)
    table = monotone(np.array(of_layers).reshape(len(heads), len(ffn)))
    return table.tolist(), float(of_rest)


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


def milliseconds(run: Callable[[], object], device: str) -> float:
    """How long a call takes until the device has done all of it."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize(device)
    return 1000 * (time.perf_counter() - start)

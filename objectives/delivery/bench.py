"""Milliseconds of whole classifiers, side by side: what half the FLOPs is worth on this machine.

The models take turns, so that a slow moment of the machine is everybody's. Weights do not matter to
time: beside models that were cut the unpruned one stands with random weights, unless another is
named.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from objectives.delivery.exported import load_model
from objectives.engines.names import BITS, ENGINES, FULL_BITS, Engine
from objectives.engines.serving import Run, serve
from objectives.engines.timing import in_turns, tokens
from objectives.errors import UserError, first_line
from objectives.measures.bootstrap import Interval
from objectives.measures.evaluate import metric_with_interval, predict_with
from objectives.measures.measured import measured_flops
from objectives.students.bert.adapters import ADAPTERS, as_bert
from objectives.students.bert.pretrained import has_tokenizer, load_tokenizer
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.text.data import Split
from objectives.text.task import Metric
from objectives.workbench.inputs import Inputs

UNPRUNED = "unpruned"
"""What the reference is called that nobody named."""


@dataclass(frozen=True)
class Timing:
    """Forward passes of one model in one engine on one shape of batch."""

    model: str
    """Its folder, or `UNPRUNED`."""
    engine: Engine
    bits: int
    """Of the weights in this engine."""
    bytes: int
    """Of all of them, as the engine loads them."""
    batch: int
    """Sequences in one forward pass."""
    length: int
    """Tokens in each of them; nothing is padded."""
    flops: int
    """Of one sequence of this length."""
    quartiles: tuple[float, float, float]
    """Milliseconds of one forward pass: the first quartile, the median, the third."""


@dataclass(frozen=True)
class Worth:
    """What a model is worth on a study's data with other bits, answered by the engine itself."""

    model: str
    """Its folder, or `UNPRUNED`."""
    engine: Engine
    metric: float
    """On the selection split."""
    interval: Interval
    """95% bootstrap interval of `metric`."""
    heldout_metric: float
    heldout_interval: Interval


@dataclass(frozen=True)
class Bench:
    """All that was timed in one process."""

    reference: str
    """The model that speed-ups are against."""
    timings: tuple[Timing, ...]
    skipped: Mapping[str, str]
    """Engine to the reason why it did not run."""
    conditions: Mapping[str, str | int]
    worths: tuple[Worth, ...] = ()
    """Of the engines that models were scored in."""


def bench(
    folders: Sequence[Path],
    *,
    against: Path | None = None,
    unpruned: PreTrainedModel | None = None,
    unpruned_layers: int | None = None,
    data: Inputs | None = None,
    scored_bits: int = FULL_BITS,
    batches: Sequence[int] = (1, 8, 32),
    lengths: Sequence[int] = (128,),
    engines: Sequence[Engine] = ENGINES,
    rounds: int = 20,
    threads: int | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Time the models of these folders in every engine on every shape.

    Args:
        folders: of exported models, or of other classifiers of BERT's kin.
        against: the folder of the reference; by default the unpruned twin of the first model, or
            that model itself where it is a plain BERT.
        unpruned: the unpruned model with its own weights, in place of that twin.
        unpruned_layers: layers of that twin; by default those of the model, as if no whole layers
            had been left out.
        data: of a study, on which models are scored in the engines of other bits than the study
            scored them in; a twin is not, its weights are random.
        scored_bits: those.
        batches: sequences in a forward pass.
        lengths: tokens in a sequence.
        engines: some of `Engine`.
        rounds: timed forward passes of each model, after warm-ups.
        threads: of one operation on the CPU; torch's number by default.
        device: "cpu", or a CUDA device.
        say: told what is timed next.

    Returns:
        The quartiles of each, in milliseconds of one forward pass, and the engines that did not
        run with the reason.

    Raises:
        UserError: for a folder without a classifier or with one that is no kin of BERT's, for a
            length that a model does not take, and where no engine runs.
    """
    for what, numbers in (("batch", batches), ("length", lengths), ("rounds", [rounds])):
        if min(numbers) < 1:
            raise UserError(f"{what} is {min(numbers)}; it must be at least 1")
    reference, models = _load(folders, against, unpruned, unpruned_layers)
    unscored = {UNPRUNED} if unpruned is None else set()
    longest = min(model.config.max_position_embeddings for model in models.values())
    if max(lengths) > longest:
        raise UserError(f"length is {max(lengths)}; these models take 1 to {longest} tokens")

    timings: list[Timing] = []
    worths: list[Worth] = []
    skipped: dict[str, str] = {}
    shapes = [(batch, length) for batch in batches for length in lengths]
    splits = {name: _splits(data, name, model) for name, model in models.items()}
    known = min(model.config.vocab_size for model in models.values())
    flops_of = cache(measured_flops)
    with _threads(threads) as used, TemporaryDirectory() as scratch:
        for engine in engines:
            say(f"{engine}: preparing {len(models)} models")
            try:
                served = serve(engine, models, Path(scratch), used, device)
                runs = [one.run for one in served]
                of_engine: list[Timing] = []
                for batch, length in shapes:
                    say(f"{engine}: batch {batch}, length {length}")
                    inputs = tokens(known, batch, length)
                    quartiles = _quartiles(in_turns(engine, runs, inputs, rounds, device))
                    of_engine += [
                        Timing(
                            model=name,
                            engine=engine,
                            bits=BITS[engine],
                            bytes=one.bytes,
                            batch=batch,
                            length=length,
                            flops=flops_of(model, length),
                            quartiles=spread,
                        )
                        for (name, model), one, spread in zip(
                            models.items(), served, quartiles, strict=True
                        )
                    ]
                of_splits: list[Worth] = []
                if data is not None and BITS[engine] != scored_bits:
                    say(f"{engine}: scoring on the selection and held-out splits")
                    of_splits = [
                        _worth(name, engine, one.run, splits[name], data.task.metric)
                        for name, one in zip(models, served, strict=True)
                        if name not in unscored
                    ]
            except Exception as error:  # whatever a compiler or a runtime lacks here
                skipped[engine] = first_line(error)
            else:
                timings += of_engine
                worths += of_splits
    if not timings:
        reasons = "; ".join(f"{engine}: {reason}" for engine, reason in skipped.items())
        raise UserError(f"no engine runs here ({reasons})")
    conditions = _conditions(used, device, rounds)
    return Bench(reference, tuple(timings), skipped, conditions, tuple(worths))


def _load(
    folders: Sequence[Path],
    against: Path | None,
    unpruned: PreTrainedModel | None,
    unpruned_layers: int | None,
) -> tuple[str, dict[str, PreTrainedModel]]:
    """The name of the reference, and all models by their names, the reference first."""
    models = {str(folder): _classifier(folder) for folder in folders}
    if against is not None:
        return str(against), {str(against): _classifier(against)} | models
    if unpruned is not None:
        return UNPRUNED, {UNPRUNED: unpruned} | models
    name, first = next(iter(models.items()))
    if isinstance(first.config, PrunedBertConfig):
        configs = [model.config for model in models.values()]
        pieces = max(getattr(c, "full_vocab_size", None) or c.vocab_size for c in configs)
        return UNPRUNED, {UNPRUNED: _unpruned(first.config, unpruned_layers, pieces)} | models
    return name, models


def _classifier(folder: Path) -> PreTrainedModel:
    """The classifier of a folder: cut, a cell, a BERT, or one of its kin as a BERT."""
    model = load_model(folder)
    kind = model.config.model_type
    if isinstance(model, PrunedBertForSequenceClassification | CellForSequenceClassification):
        return model
    if kind not in ADAPTERS:
        raise UserError(
            f"'{folder}': it is of the kind '{kind}'; maskfront times its own, and those of the "
            f"kinds {', '.join(ADAPTERS)}"
        )
    model = as_bert(model)
    model.train(False)
    return model


def _unpruned(
    config: PrunedBertConfig, layers: int | None, pieces: int
) -> PrunedBertForSequenceClassification:
    """A model of so many layers and word pieces from which nothing was cut, with random weights."""
    cut = ("per_layer_config", "embedding_bits", "pooler_bits", "full_vocab_size")
    own = {name: value for name, value in config.to_dict().items() if name not in cut}
    own |= {"num_hidden_layers": layers or config.num_hidden_layers, "vocab_size": pieces}
    with torch.random.fork_rng(devices=[]):
        model = PrunedBertForSequenceClassification(PrunedBertConfig.from_dict(own))
    model.train(False)
    return model


def _splits(data: Inputs | None, name: str, model: PreTrainedModel) -> list[Split]:
    """What a model is scored on: in tokens of its own if its folder has a tokenizer."""
    if data is None:
        return []
    smaller = model.config.vocab_size < len(data.tokenizer)
    own = name != UNPRUNED and (smaller or has_tokenizer(name))
    tokenizer = load_tokenizer(name) if own else None
    return data.judging(tokenizer)


def _worth(model: str, engine: Engine, run: Run, splits: Sequence[Split], metric: Metric) -> Worth:
    select, heldout = (
        metric_with_interval(predict_with(run, split), split, metric) for split in splits
    )
    return Worth(model, engine, *select, *heldout)


def _quartiles(times: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Of each column."""
    low, middle, high = np.percentile(times, [25, 50, 75], axis=0).tolist()
    return list(zip(low, middle, high, strict=True))


@contextmanager
def _threads(wanted: int | None) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield wanted or before
    finally:
        torch.set_num_threads(before)


def _conditions(threads: int, device: str, rounds: int) -> dict[str, str | int]:
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "rounds": rounds,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }

"""Time whole classifiers side by side: what half the FLOPs gives on this machine.

The models take turns, so that a slow moment of the machine is everybody's. Weights do not matter to
time: beside models that were cut the unpruned one stands with random weights, unless another is
named. Where the task's own texts are known, they are timed too, from text to label.
"""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from objectives.combining.cascade import spread
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import text_to_label, texts_of, write_single
from objectives.delivery.exported import load_model
from objectives.delivery.timings import Bench, Timing, with_comparisons
from objectives.engines.names import BITS, ENGINES, FULL_BITS, Engine
from objectives.engines.serving import Served, make_runnable
from objectives.engines.timing import in_turns, tokens
from objectives.errors import UserError, first_line, spelled
from objectives.measures.bootstrap import Worth
from objectives.measures.evaluate import less_thresholds, metric_with_interval, predict_with
from objectives.measures.measured import measured_flops
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.quantising import rounds_inputs
from objectives.students.families import family_of
from objectives.workbench.inputs import Inputs

UNPRUNED = "unpruned"
"""Name of the reference if the user named none."""
_TEXTS = 100
"""Texts of the selection split that are timed from text to label."""
_TEXT_BATCHES = (1, 8)


@dataclass(frozen=True, kw_only=True, eq=False)
class OfRun:
    """The unpruned model of a run, and the data to score its students on."""

    unpruned: PreTrainedModel | None = None
    """The unpruned model with its weights; None: a twin of the first student, with random ones."""
    layers: int | None = None
    """Layers of the twin; by default those of the student, as if no layer had been left out."""
    data: Inputs | None = None
    """Data of a study, on which models are timed from text to label in onnxruntime and scored in
    engines of other bits than `bits`. A twin is not scored, as its weights are random."""
    bits: int = FULL_BITS
    """Bits in which the run scored its models."""


@spelled
def bench(
    folders: Sequence[Path],
    *,
    against: Path | None = None,
    of_run: OfRun | None = None,
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
        folders: of exported models, or of other classifiers of BERT's variants.
        against: the folder of the reference; by default the unpruned twin of the first model, or
            that model itself where it was cut from nothing.
        of_run: what is known of the models beside their folders.
        batches: sequences in a forward pass.
        lengths: tokens in a sequence.
        engines: some of `Engine`.
        rounds: timed forward passes of each model, after warm-ups.
        threads: threads of one operation on the CPU; torch's number by default.
        device: "cpu", or a CUDA device.
        say: told what is timed next.

    Returns:
        The quartiles of each, in milliseconds of one forward pass, and the engines that did not
        run with the reason. With a study's data also those from text to label, on one thread: torch
        is timed on token ids alone.

    Raises:
        UserError: for a folder without a classifier or with one of no known family, for a length
            that a model does not take, and where no engine runs.
    """
    folders = [Path(folder) for folder in folders]
    counts = {"batch": batches, "length": lengths, "rounds": [rounds], "threads": [threads or 1]}
    for what, numbers in counts.items():
        if min(numbers) < 1:
            raise UserError(f"{what} is {min(numbers)}; it must be at least 1")
    of_run = of_run or OfRun()
    reference, models = _load(folders, against, of_run)
    longest = min(model.config.max_position_embeddings for model in models.values())
    if max(lengths) > longest:
        raise UserError(f"length is {max(lengths)}; these models take 1 to {longest} tokens")

    vocabulary = min(model.config.vocab_size for model in models.values())
    flops = cache(lambda name, length: measured_flops(models[name], length))
    on_data = of_run.data and _OnData(of_run.data, of_run, models, say)
    timings: list[Timing] = []
    skipped: dict[str, str] = {}
    before = torch.get_num_threads()
    used = threads or before
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(used)
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        # The twin has no folder: one of its name in the working directory is another model's.
        places = {str(scratch / n) if n == UNPRUNED else n: model for n, model in models.items()}
        for engine in engines:
            say(f"{engine}: preparing {len(models)} models")
            try:
                ready_models = make_runnable(engine, places, scratch, used, device)
                served = dict(zip(models, ready_models, strict=True))
                runs = [ready.run for ready in served.values()]
                sizes = {name: ready.bytes for name, ready in served.items()}
                of_engine: list[Timing] = []
                for batch, length in product(batches, lengths):
                    say(f"{engine}: batch {batch}, length {length}")
                    inputs = tokens(vocabulary, batch, length)
                    times = in_turns(engine, runs, inputs, rounds, device)
                    of_engine += timings_of(engine, times, sizes, batch, length, flops)
                scores = on_data.scored(engine, served) if on_data else {}
                files = {n: ready.file for n, ready in served.items() if ready.file is not None}
                del served, runs  # its sessions: the classifiers have their own
                if on_data and files:
                    of_engine += on_data.from_text(engine, files, flops)
            except Exception as error:  # whatever a compiler or a runtime lacks here
                skipped[engine] = first_line(error)
            else:
                timings += (replace(timing, worth=scores.get(timing.model)) for timing in of_engine)
    if not timings:
        reasons = "; ".join(f"{engine}: {reason}" for engine, reason in skipped.items())
        raise UserError(f"no engine runs here ({reasons})")
    conditions: dict[str, str | int] = {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": used,
        "rounds": rounds,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    return Bench(reference, with_comparisons(timings, reference), skipped, conditions)


def _load(
    folders: Sequence[Path], against: Path | None, of_run: OfRun
) -> tuple[str, dict[str, PreTrainedModel]]:
    """The name of the reference, and all models by their names, the reference first."""
    models = {_name(folder): _classifier(folder) for folder in folders}
    if against is not None:
        return _name(against), {_name(against): _classifier(against)} | models
    name, *_ = models
    unpruned = of_run.unpruned
    # Models of a run have one unpruned model, though the first may be a cell.
    for model in [*models.values()][: None if of_run.layers else 1]:
        if unpruned is None:
            unpruned = family_of(model).unpruned([model, *models.values()], of_run.layers)
    return (name, models) if unpruned is None else (UNPRUNED, {UNPRUNED: unpruned} | models)


def _name(folder: Path) -> str:
    return f"./{folder}" if str(folder) == UNPRUNED else str(folder)


def _classifier(folder: Path) -> PreTrainedModel:
    model = load_model(folder)
    try:
        model = family_of(model).adapted(model)
    except UserError as error:
        raise UserError(f"'{folder}': {error}") from error
    model.train(False)
    return model


def timings_of(
    engine: Engine,
    times: NDArray[np.float64],
    sizes: Mapping[str, int],
    batch: int,
    length: int,
    flops: Callable[[str, int], int],
    texts: bool = False,
) -> Iterator[Timing]:
    """Timings from milliseconds (passes, models) and the bytes of each model."""
    percentiles = np.percentile(times, [25, 50, 75, 95], axis=0).T.tolist()
    for (name, size), (low, middle, high, slow) in zip(sizes.items(), percentiles, strict=True):
        yield Timing(
            model=name,
            engine=engine,
            bits=BITS[engine],
            bytes=size,
            batch=batch,
            length=length,
            flops=flops(name, length),
            quartiles=(low, middle, high),
            slow=slow,
            texts=texts,
        )


class _OnData:
    """The models on a study's data: from text to label, and their scores."""

    def __init__(
        self,
        data: Inputs,
        of_run: OfRun,
        models: Mapping[str, PreTrainedModel],
        say: Callable[[str], None],
    ):
        self.data, self.of_run, self.models, self.say = data, of_run, models, say
        self.tokenizers = dict.fromkeys(models, data.tokenizer)
        for name in models.keys() - {UNPRUNED}:
            smaller = models[name].config.vocab_size < len(data.tokenizer)
            if smaller or Checkpoint(name).has_tokenizer:
                self.tokenizers[name] = Checkpoint(name).tokenizer
        self.splits = {
            name: data.judging(tokenizer)
            for name, tokenizer in self.tokenizers.items()
            if name != UNPRUNED or of_run.unpruned is not None
        }
        """Selection and held-out rows of each model that may be scored, in its own tokens."""

    def from_text(
        self, engine: Engine, files: Mapping[str, Path], flops: Callable[[str, int], int]
    ) -> Iterator[Timing]:
        """Time every model from text to label, on texts from all of the selection split."""
        for tokenizer in self.tokenizers.values():
            if not tokenizer.is_fast:
                kind = type(tokenizer).__name__
                self.say(f"{engine}: no times from text, {kind} is not a fast tokenizer")
                return
        task, texts = self.data.task, spread(texts_of(self.data, "select"), _TEXTS)
        length = round(np.mean(spread(self.data.split("select").lengths.tolist(), _TEXTS)))
        sizes = {name: file.stat().st_size for name, file in files.items()}
        with TemporaryDirectory() as scratch:
            classifiers: list[Classifier] = []
            for name, file in files.items():
                (folder := Path(scratch, str(len(classifiers)))).mkdir()
                source = str(file.resolve()), self.models[name], self.tokenizers[name]
                write_single(folder, *source, task.max_length, task.truncation, texts)
                classifiers.append(Classifier(folder))
            for batch in _TEXT_BATCHES:
                full = texts[: len(texts) // batch * batch or None]  # whole batches, if any
                times = text_to_label(
                    classifiers, full, batch=batch, say=lambda line: self.say(f"{engine}: {line}")
                )
                yield from timings_of(engine, times, sizes, batch, length, flops, texts=True)

    def scored(self, engine: Engine, served: Mapping[str, Served]) -> dict[str, Worth]:
        """Score models in an engine whose bits, or input bits, differ from the run's."""
        same, task, scores = BITS[engine] == self.of_run.bits, self.data.task, dict[str, Worth]()
        for name, rows in self.splits.items():
            if same and (engine == "eager" or not rounds_inputs(self.models[name])):
                continue
            if not scores:
                self.say(f"{engine}: scoring on the selection and held-out splits")
            logits = {split.role: predict_with(served[name].run, split) for split in rows}
            if task.own_thresholds:
                shares = getattr(self.models[name].config, "thresholds", None)
                logits, _ = less_thresholds(logits, rows[0], task.metric, shares)
            select, heldout = (
                metric_with_interval(logits[split.role], split, task.metric) for split in rows
            )
            scores[name] = Worth(*select, *heldout)
        return scores

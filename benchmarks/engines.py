"""Engines: the latency table of a study against whole models, and kernels for few bits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import Training, search
from maskfront import FisherSearch, Stage
from objectives.engines import timing
from objectives.engines.names import ENGINES
from objectives.engines.onnx_model import (
    open_session,
    run_session,
    write_int4,
    write_int8,
    write_onnx,
)
from objectives.engines.serving import make_runnable
from objectives.engines.timing import milliseconds
from objectives.measures.evaluate import divergence, metric_of, predict_with
from objectives.measures.latency import load_latency
from objectives.session import Session
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.architecture import BertArchitecture, BertShape, LayerUnits
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint, Classifier
from objectives.text.data import INPUTS, Split
from objectives.workbench.workbench import Workbench
from studies._data import minilm

SHARES = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
"""Shares of the heads and neurons that a model keeps, about."""


def drawn(shape: BertShape, share: float, dice: random.Random) -> BertArchitecture:
    """Draw layers that keep from nothing to twice this share."""

    def units(size: int) -> tuple[int, ...]:
        return tuple(range(round(size * min(1.0, dice.uniform(0, 2 * share)))))

    return BertArchitecture(
        tuple(LayerUnits(units(shape.heads), units(shape.ffn)) for _ in range(shape.layers))
    )


class LatencyTable(Benchmark[Classifier]):
    """How far off is the table of a study of milliseconds, for whole models?

    The unpruned MiniLM and models of drawn widths take turns; `off` is predicted over measured - 1.
    """

    name = "latency_table"
    tasks = ()
    seeds = ()
    cache = False
    grid = {
        "engine": tuple(engine for engine in ENGINES if engine != "compile"),
        "batch": (1, 8),
        "length": (128,),
    }
    groups = ("engine", "batch", "length", "predicted")
    means = {"measured": ".2f", "off": "+.1%", "off_as_share_of_unpruned": "+.1%"}

    def prepare(self, key: Row) -> Classifier:
        """Load the pretrained model, with a classifier on top."""
        return as_bert(Checkpoint(minilm()).load_classifier(["bad", "good", "neither"])).eval()

    def rows(self, key: Row, model: Classifier) -> Iterator[Row]:
        """Measure the table, and the models."""
        engine, batch, length = key["engine"], key["batch"], key["length"]
        shape, dice = shape_of(model.config), random.Random(0)
        wanted = [BertArchitecture.full(shape), *(drawn(shape, share, dice) for share in SHARES)]
        models = [cut(model.state_dict(), model.config, units) for units in wanted]
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "cache").mkdir()
            named = {f"{scratch}/{number}": one for number, one in enumerate(models)}
            runs = [
                one.run for one in make_runnable(engine, named, folder, self.asked.threads, "cpu")
            ]
            session = Session(cache=folder / "cache")
            cost = load_latency(model, batch=batch, seq_len=length, engine=engine, session=session)
            inputs = timing.tokens(model.config.vocab_size, batch, length)
            times = np.median(timing.in_turns(engine, runs, inputs, 20, "cpu"), axis=0).tolist()
        for units, measured in zip(wanted, times, strict=True):
            predicted = cost.exact(units)
            gain = (predicted / cost.full) / (measured / times[0]) - 1
            yield {
                "predicted": predicted,
                "measured": measured,
                "off": predicted / measured - 1,
                "off_as_share_of_unpruned": gain,
            }


KERNELS = ("float32", "int8", "int8, static", "4 bits")
BATCHES = (1, 8)
ROWS = 256
"""Rows of train by which static int8 is calibrated."""


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Train rows, one batch after another, for the scales of activations."""

    def __init__(self, split: Split, rows: int):
        self._batches = self._of(split, rows)

    def _of(self, split: Split, rows: int) -> Iterator[dict[str, NDArray[np.int64]]]:
        order = np.random.default_rng(0).permutation(len(split))[:rows]
        for start in range(0, len(order), 32):
            batch = split.batch(order[start : start + 32], "cpu")
            yield {name: tensor.long().numpy() for name, tensor in batch.inputs.items()}

    def get_next(self) -> dict[str, NDArray[np.int64]] | None:
        """The next batch; None at the end."""
        return next(self._batches, None)


def write_static(whole: Path, file: Path, split: Split) -> None:
    """Write int8 weights, and activations whose scales stand in the file."""
    quantize_static(
        whole,
        file,
        Calibration(split, ROWS),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm", "Gather"],
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def write(kernel: str, whole: Path, file: Path, split: Split) -> None:
    """Write the file of a kernel, from the one in float32."""
    match kernel:
        case "int8":
            write_int8(whole, file)
        case "int8, static":
            write_static(whole, file, split)
        case _:
            write_int4(whole, file)


def times(files: Sequence[Path], batch: int, length: int = 128) -> list[float]:
    """Return median milliseconds of a forward pass of each, all in turn."""
    sessions = [open_session(file, threads=1) for file in files]
    tokens = torch.randint(1000, 2000, (batch, length), generator=torch.Generator().manual_seed(0))
    inputs = {name: torch.zeros_like(tokens) for name in INPUTS}
    inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    taken = np.empty((15 + 3, len(sessions)))
    for row in taken:
        for index, session in enumerate(sessions):
            row[index] = milliseconds(partial(run_session, session, inputs), "cpu")
    medians: list[float] = np.median(taken[3:], axis=0).tolist()  # three warm up
    return medians


class OnnxKernels(Training):
    """Which onnxruntime kernels for few bits pay, on one core? Size, answers, time.

    int8 quantises activations as they come, static int8 by scales from rows of train; 4 bits are
    MatMulNBits and GatherBlockQuantized. "0.13" is cut to that share of its FLOPs, and distilled.
    `difference` is the largest of a logit; speed is beside the same model in float32.
    """

    name = "onnx_kernels"
    seeds = ()
    grid = {"model": ("unpruned", "0.13")}
    groups = ("task", "model", "kernel")
    means = {
        **{"megabytes": ".1f", "kl": ".4f", "difference": ".3f", "select": ".4f"},
        **{"speedup_batch_1": ".2f", "speedup_batch_8": ".2f"},
    }

    def rows(self, key: Row, bench: Workbench) -> Iterator[Row]:
        """Write the files of all kernels, and time them in turn."""
        select = bench.select
        folder = self.asked.cache / f"onnx-{key['task']}-{key['model']}"
        folder.mkdir(exist_ok=True)
        names = [kernel.replace(", ", "-").replace(" ", "-") for kernel in KERNELS]
        whole, *others = files = [folder / f"{name}.onnx" for name in names]
        if not whole.is_file():
            model: Any = bench.problem.teacher
            if key["model"] != "unpruned":
                stage = Stage(
                    name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden"
                )
                method = FisherSearch(target_ratio=float(key["model"]), stages=(stage,))
                model = search(method, bench.problem, 0).model
            write_onnx(model, whole)
        for kernel, file in zip(KERNELS[1:], others, strict=True):
            if not file.is_file():
                write(kernel, whole, file, bench.problem.train)
        taken = [times(files, batch) for batch in BATCHES]
        answers = [predict_with(partial(run_session, open_session(file)), select) for file in files]
        for index, kernel in enumerate(KERNELS):
            faster = [of_batch[0] / of_batch[index] for of_batch in taken]
            yield {
                "kernel": kernel,
                "megabytes": files[index].stat().st_size / 1e6,
                "kl": divergence(answers[index], bench.teacher_answers["select"], select),
                "difference": (answers[index] - answers[0]).abs().max().item(),
                "select": metric_of(answers[index], select, bench.metric),
                **{f"speedup_batch_{b}": ratio for b, ratio in zip(BATCHES, faster, strict=True)},
            }

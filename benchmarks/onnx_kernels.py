"""Kernels of onnxruntime for few bits on one core: size, answers, time.

The fine-tuned MiniLM-L6, and one that `FisherSearch` cut to 0.13 of its FLOPs and distilled, in
onnxruntime on the CPU:

    float32
    int8              dynamic: activations are quantised as they come (`maskfront export --int8`)
    int8, static      QDQ: their scales from calibration rows of train
    4 bits            weights as MatMulNBits, embeddings as GatherBlockQuantized (`--int4`)

    python -m benchmarks.onnx_kernels --cache FOLDER [--task tweets] [--glue FOLDER] [--rounds 15]
        [--rows 256] [--length 128]

KL from the float32 teacher in nats and the metric, on the selection split; the largest difference
of a logit from the same model in float32; times as fast as the same model in float32, medians of
the rounds in which all take turns, at batch 1 and 8. Writes benchmarks/results/onnx_kernels.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from benchmarks.harness import parsed, parser_of, print_table, write_json
from benchmarks.tasks import search, workbench
from maskfront import FisherSearch, Stage
from objectives.engines.onnx_model import (
    open_session,
    run_session,
    write_int4,
    write_int8,
    write_onnx,
)
from objectives.engines.timing import milliseconds
from objectives.measures.evaluate import divergence, metric_of, predict_with
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.text.data import INPUTS, Split
from objectives.workbench.workbench import Workbench

KERNELS = ("float32", "int8", "int8, static", "4 bits")
BATCHES = (1, 8)
WARM_UPS = 3
RECOVER = Stage(name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden")


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """Train rows, one batch after another, for the scales of activations."""

    def __init__(self, split: Split, rows: int):
        if rows < 1:
            raise SystemExit(f"--rows is {rows}; a calibration needs 1 row of train at least")
        self._batches = self._of(split, rows)

    def _of(self, split: Split, rows: int) -> Iterator[dict[str, NDArray[np.int64]]]:
        order = np.random.default_rng(0).permutation(len(split))[:rows]
        for start in range(0, len(order), 32):
            batch = split.batch(order[start : start + 32], "cpu")
            yield {name: tensor.long().numpy() for name, tensor in batch.inputs.items()}

    def get_next(self) -> dict[str, NDArray[np.int64]] | None:
        """The next batch; None at the end."""
        return next(self._batches, None)


def write_static(whole: Path, file: Path, split: Split, rows: int) -> None:
    """int8 weights, an output at a time, and activations whose scales stand in the file."""
    quantize_static(
        whole,
        file,
        Rows(split, rows),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm", "Gather"],
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def cut(bench: Workbench) -> PrunedBertForSequenceClassification:
    """0.13 of the FLOPs, distilled."""
    method = FisherSearch(target_ratio=0.13, stages=(RECOVER,))
    outcome = search(method, bench.problem, 0)
    assert isinstance(outcome.model, PrunedBertForSequenceClassification)
    return outcome.model


def write(kernel: str, whole: Path, file: Path, split: Split, rows: int) -> None:
    """The file of a kernel, from the one in float32."""
    match kernel:
        case "int8":
            write_int8(whole, file)
        case "int8, static":
            write_static(whole, file, split, rows)
        case _:
            write_int4(whole, file)


def times(files: Sequence[Path], batch: int, length: int, rounds: int) -> list[float]:
    """Median milliseconds of one forward pass of each, all in turn."""
    sessions = [open_session(file, threads=1) for file in files]
    tokens = torch.randint(1000, 2000, (batch, length), generator=torch.Generator().manual_seed(0))
    inputs = {name: torch.zeros_like(tokens) for name in INPUTS}
    inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    taken = np.empty((rounds + WARM_UPS, len(sessions)))
    for row in taken:
        for place, session in enumerate(sessions):
            row[place] = milliseconds(partial(run_session, session, inputs), "cpu")
    medians: list[float] = np.median(taken[WARM_UPS:], axis=0).tolist()
    return medians


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each model in each kernel."""
    bench = workbench(arguments.task, arguments.glue, arguments.cache)
    teacher, select = bench.teacher_answers["select"], bench.select
    for name, make in (("unpruned", lambda: bench.problem.teacher), ("0.13", partial(cut, bench))):
        folder = arguments.cache / f"onnx-{arguments.task}-{name}"
        folder.mkdir(exist_ok=True)
        files = [
            folder / f"{kernel.replace(', ', '-').replace(' ', '-')}.onnx" for kernel in KERNELS
        ]
        whole = files[0]
        if not whole.is_file():
            write_onnx(make(), whole)
        for kernel, file in zip(KERNELS, files, strict=True):
            if not file.is_file():
                write(kernel, whole, file, bench.problem.train, arguments.rows)
        taken = [times(files, batch, arguments.length, arguments.rounds) for batch in BATCHES]
        answers = [predict_with(partial(run_session, open_session(file)), select) for file in files]
        for place, kernel in enumerate(KERNELS):
            faster = [of_batch[0] / of_batch[place] for of_batch in taken]
            yield {
                "task": arguments.task,
                "model": name,
                "kernel": kernel,
                "megabytes": files[place].stat().st_size / 1e6,
                "kl": divergence(answers[place], teacher, select),
                "difference": (answers[place] - answers[0]).abs().max().item(),
                "select": metric_of(answers[place], select, bench.metric),
                **{f"speedup_batch_{b}": ratio for b, ratio in zip(BATCHES, faster, strict=True)},
            }


def main() -> None:
    """Measure, write, print."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), cache=True)
    parser.set_defaults(threads=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=256, help="of train, for static int8")
    parser.add_argument("--length", type=int, default=128, help="tokens in what is timed")
    arguments = parsed(parser)
    found = list(measure(arguments))
    about = {"threads": 1, "onnxruntime": version("onnxruntime")}
    write_json(arguments.out / "onnx_kernels.json", {**about, "rows": found})
    print_table(
        "kernels of onnxruntime, one core",
        list(found[0]),
        [[f"{x:.4g}" if isinstance(x, float) else x for x in row.values()] for row in found],
    )


if __name__ == "__main__":
    main()

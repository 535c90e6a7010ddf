"""How many trials an hour: K students as one program, beside plain loops that train one each.

The step is that of `MaskSearch` on MiniLM-L6, as in `benchmarks.inner_search`: weights on a batch
of train against the teacher's answers, alpha on a batch of its own, 32 sequences padded to one
length. A trial is taken to be STEPS of them, three epochs of CoLA. All variants multiply in one
precision, the plain loop by autocast.

- `fused`: the product, K students at once; K = 1 is its plain case.
- `plain-loop`: transformers with masks by forward hooks, its answers of the teacher cached and its
  embeddings frozen as the product's.
- `plain-processes`: that loop in several processes at once, each with its share of the threads.

    python -m benchmarks.population [--sizes 1 2 4 8] [--processes 2] [--lengths 32]
        [--precision auto | float32 | bfloat16] [--device cpu] [--threads 2]
        [--steps 4] [--rounds 3]

Operations are those of a step that the host asks of the device, views left out: a GPU is idle while
they take longer to ask for than to do.

Each measurement is a process of its own, for its peak of memory; variants take turns, round after
round. The share of the device that is reached: FLOPs of all matmuls of a step, and bytes of
weights, gradients and moments that it must move at least, each over what a large matmul and a large
copy reach in the same run. Prints a table, writes benchmarks/results/population-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, get_args

import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.inner_search import METHOD, Clock, PlainLoop, describe, padded
from objectives.device import Precision, matmul_dtype, quiet_libraries
from objectives.methods.mask_search import MaskSearch
from objectives.pretrained import load_tokenizer
from objectives.problem import Problem, prepare, read_inputs
from objectives.search_method import SilentProgress
from objectives.teacher import Teacher
from studies.quickstart import minilm, study

STEPS = 804
"""Of a trial: three epochs of CoLA's 8,551 sentences in batches of 32."""
BYTES_OF_A_WEIGHT = {"float32": 40, "bfloat16": 46}
"""Moved in a step at least: read forward and backward, its gradient written; then AdamW reads it,
its gradient and two moments, and writes all but the gradient, in float32. For matmuls in bfloat16
weight and gradient are converted on top."""


@dataclass(frozen=True)
class Variant:
    """What is measured, in one process or in several at once."""

    name: str
    size: int
    """K of `fused`, or the number of processes."""
    length: int

    @property
    def processes(self) -> int:
        """At once."""
        return self.size if self.name == "plain-processes" else 1


class Operations(TorchDispatchMode):
    """Counts operations; views are none."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class Counted(SilentProgress):
    """How many there have been at the end of each step."""

    def __init__(self, counter: Operations) -> None:
        self.counter = counter
        self.counts: list[int] = []

    def advance(self) -> Set[int]:
        """Note the count; nobody stops."""
        self.counts.append(self.counter.count)
        return frozenset()


def make_checkpoint(folder: Path) -> str:
    """MiniLM with a classifier; it is random, for no number here depends on it."""
    torch.manual_seed(0)
    transformers.BertForSequenceClassification.from_pretrained(
        str(minilm), num_labels=3
    ).save_pretrained(folder)
    load_tokenizer(str(minilm)).save_pretrained(folder)
    return str(folder)


def make_problem(checkpoint: str, length: int, device: str) -> Problem:
    """A few tweets, their batches padded to `length`."""
    task = replace(study.task, max_length=length, train=320, alpha=320, select=64, heldout=64)
    inputs = read_inputs(task, Teacher(checkpoint=checkpoint), seq_len=length)
    with TemporaryDirectory() as cache:
        problem = prepare(
            inputs, cache=Path(cache), seed=0, device=device, progress=SilentProgress()
        ).problem
    return padded(problem)


def measure(
    variant: Variant, precision: Precision, checkpoint: str, device: str, threads: int, steps: int
) -> dict[str, float]:
    """Of one process: seconds of a step, its peak of memory, the FLOPs of its matmuls."""
    torch.set_num_threads(threads)
    problem = make_problem(checkpoint, variant.length, device)

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    if variant.name == "fused":
        clock = Clock(steps, now, students=variant.size)
        members = searching(steps + 2, variant.size, precision)
        list(MaskSearch.search(members, problem, seed=0, progress=clock))
        seconds = clock.seconds
    else:
        loop = PlainLoop(problem, cached=True, frozen=True, precision=precision)
        times = []
        for _ in range(steps + 1):
            loop.step()
            times.append(now())
        seconds = [after - before for before, after in pairwise(times)]
    peak = (
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if device == "cpu"
        else torch.cuda.max_memory_allocated(device)
    )
    return {
        "seconds": statistics.median(seconds),
        "peak": peak,
        "flops": flops_of_step(problem),
        "operations": operations_of_step(variant, precision, problem),
    }


def searching(steps: int, students: int, precision: Precision) -> list[MaskSearch]:
    """Students of several ratios, in a search of so many steps."""
    stage = replace(METHOD.stages[0], epochs=steps * METHOD.batch_size / 320)
    method = replace(METHOD, stages=(stage,), precision=precision)
    return [replace(method, target_ratio=0.3 + 0.4 * slot / students) for slot in range(students)]


def flops_of_step(problem: Problem) -> int:
    """Of all matmuls of one step of one student."""
    loop = PlainLoop(problem, cached=True, frozen=True)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loop.step()
    return int(counter.get_total_flops())


def operations_of_step(variant: Variant, precision: Precision, problem: Problem) -> int:
    """Of the second step, which has no more to prepare."""
    counter = Operations()
    if variant.name == "fused":
        counted, members = Counted(counter), searching(2, variant.size, precision)
        with counter:
            list(MaskSearch.search(members, problem, seed=0, progress=counted))
        return counted.counts[1] - counted.counts[0]
    loop = PlainLoop(problem, cached=True, frozen=True, precision=precision)
    loop.step()
    with counter:
        loop.step()
    return counter.count


def ceilings(
    device: str, threads: int, dtype: torch.dtype, now: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """What the device reaches: FLOP/s of a large matmul, bytes/s of a large float32 copy."""
    torch.set_num_threads(threads)
    side, words = (2048, 2**27) if device == "cpu" else (8192, 2**30)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(words, device=device)
    target = torch.empty_like(source)

    def best(work: Any) -> float:
        times = []
        for _ in range(6):
            if device != "cpu":
                torch.cuda.synchronize(device)
            started = now()
            work()
            if device != "cpu":
                torch.cuda.synchronize(device)
            times.append(now() - started)
        return min(times[1:])

    return {
        "matmul_flops_per_second": 2 * side**3 / best(lambda: torch.mm(left, right)),
        "copy_bytes_per_second": 8 * words / best(lambda: target.copy_(source)),
    }


def run(
    variant: Variant, precision: Precision, checkpoint: str, device: str, threads: int, steps: int
) -> list[dict[str, float]]:
    """The processes of a variant, begun together once all are ready."""
    own = max(1, threads // variant.processes)
    arguments = json.dumps([variant.__dict__, precision, checkpoint, device, own, steps])
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.population", "--measure", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(own)},
        )
        for _ in range(variant.processes)
    ]
    pipes: list[tuple[IO[str], IO[str]]] = []
    for child in children:
        assert child.stdin is not None
        assert child.stdout is not None
        pipes.append((child.stdin, child.stdout))
    for _, out in pipes:
        assert out.readline() == "ready\n", "a measurement failed; its error is above"
    for into, _ in pipes:
        into.write("go\n")
        into.flush()
    found = [json.loads(out.readline()) for _, out in pipes]
    for child in children:
        child.wait()
    return found


def row(
    variant: Variant, rounds: list[list[dict[str, float]]], limits: dict[str, float], moved: int
) -> dict[str, Any]:
    """What the rounds of one variant say together; `moved` are the bytes of a student's step."""
    students = variant.size
    each = [statistics.mean(one["seconds"] for one in processes) for processes in rounds]
    seconds = statistics.median(each)
    flops = rounds[0][0]["flops"] * students
    return {
        "variant": variant.name,
        "k": variant.size,
        "length": variant.length,
        "seconds_per_step": seconds,
        "seconds_of_rounds": each,
        "trials_per_hour": students * 3600 / (seconds * STEPS),
        "peak_memory_bytes": int(statistics.median(sum(p["peak"] for p in r) for r in rounds)),
        "flops_per_step": flops,
        "operations_per_step": rounds[0][0]["operations"] * variant.processes,
        "share_of_matmul_peak": flops / seconds / limits["matmul_flops_per_second"],
        "share_of_bandwidth": moved * students / seconds / limits["copy_bytes_per_second"],
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The table; how many times the trials an hour of the plain loop, of the same length."""
    table = Table(
        *("variant", "K", "tokens", "ms a step", "trials/h", "x loop"),
        *("GiB", "operations", "matmul", "bytes"),
    )
    for entry in rows:
        [loop] = [
            other["trials_per_hour"]
            for other in rows
            if other["variant"] == "plain-loop" and other["length"] == entry["length"]
        ]
        table.add_row(
            entry["variant"],
            str(entry["k"]),
            str(entry["length"]),
            f"{1000 * entry['seconds_per_step']:.0f}",
            f"{entry['trials_per_hour']:.2f}",
            f"{entry['trials_per_hour'] / loop:.2f}",
            f"{entry['peak_memory_bytes'] / 2**30:.2f}",
            str(entry["operations_per_step"]),
            f"{entry['share_of_matmul_peak']:.0%}",
            f"{entry['share_of_bandwidth']:.0%}",
        )
    console.print(table)


def main() -> None:
    """Measure all variants in turn, round after round; print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32])
    parser.add_argument("--precision", default="auto", choices=get_args(Precision))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    quiet_libraries()
    if options.measure:
        of_variant, *others = json.loads(options.measure)
        print(json.dumps(measure(Variant(**of_variant), *others)), flush=True)  # noqa: T201
        return
    variants = [
        Variant(name, size, length)
        for length in options.lengths
        for name, sizes in (
            ("plain-loop", [1]),
            ("plain-processes", options.processes),
            ("fused", options.sizes),
        )
        for size in sizes
    ]
    dtype = matmul_dtype(options.precision, options.device)
    precision: Precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
    limits = ceilings(options.device, options.threads, dtype)
    found: dict[Variant, list[list[dict[str, float]]]] = {variant: [] for variant in variants}
    console = Console(width=110)
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "teacher")
        model = transformers.BertForSequenceClassification.from_pretrained(checkpoint)
        frozen = sum(weight.numel() for weight in model.bert.embeddings.parameters())
        moved = BYTES_OF_A_WEIGHT[precision] * (model.num_parameters() - frozen)
        for _, variant in track(
            [(r, v) for r in range(options.rounds) for v in variants], console=console
        ):
            found[variant].append(
                run(variant, precision, checkpoint, options.device, options.threads, options.steps)
            )
    rows = [row(variant, rounds, limits, moved) for variant, rounds in found.items()]
    show(rows, console)
    document = {
        "device": describe(options.device),
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "student": "MiniLM-L6",
        "precision": precision,
        "batch_size": METHOD.batch_size,
        "steps_of_a_trial": STEPS,
        "rounds": options.rounds,
        "steps": options.steps,
        **limits,
        "rows": rows,
    }
    kind = options.device.split(":")[0]
    out = Path(__file__).parent / "results" / f"population-{kind}.json"
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How many trials an hour: K students as one program, beside plain loops that train one each.

The step is that of `MaskSearch` on MiniLM-L6, as in `benchmarks.inner_search`: weights on a batch
of train against the teacher's answers, alpha on a batch of its own, 32 sequences padded to one
length. A trial is taken to be TRIAL_STEPS of them, three epochs of CoLA. All variants multiply in
one precision, the plain loop by autocast. Weights and texts are random (`benchmarks.made_up`): the
masks stay open, so a step costs the same whatever they hold.

- `fused`: the product, K students at once; K = 1 is its plain case.
- `plain-loop`: transformers with masks by forward hooks, its answers of the teacher cached and its
  embeddings frozen as the product's.
- `plain-processes`: that loop in several processes at once, each with its share of the threads.

    python -m benchmarks.population [--sizes 1 2 4 8] [--processes 2] [--lengths 32]
        [--precision auto | float32 | bfloat16] [--device cpu] [--threads 2]
        [--steps 4] [--rounds 3] [--out benchmarks/results]

On a GPU the sizes are 1 to 64 unless they are named, and the steps 30. Needs torch, transformers,
rich, and what `objectives` imports (see `benchmarks.made_up`).

Steps are timed from a look at the clock to the next, which waits for the device, with none between;
the first, on a GPU the first five, are not. Operations are those of a step that the host asks of
the device, views left out: a GPU is idle while they take longer to ask for than to do.

Variants take turns, round after round. Each is measured in a process of its own, for its peak of
memory (Linux only); on a GPU, where torch keeps count, one process measures plain loop and all
sizes, the smallest first. What finds no memory, or ends, has a row that says so. The share of the
device that is reached: FLOPs of all matmuls of a step, and bytes of weights, gradients and moments
that it must move at least, each over what a large matmul and a large copy reach in the same run.
Prints a table; writes population-<device>.json after each measurement.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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

from benchmarks.harness import parsed, parser_of, write_json
from benchmarks.inner_search import METHOD, PlainLoop, padded, searching
from benchmarks.made_up import make_checkpoint, make_problem
from benchmarks.timing import (
    STEPS,
    WARM_UP,
    EnoughError,
    Now,
    Stopwatch,
    clock,
    describe,
    kind_of,
    seconds_of,
    until_enough,
)
from objectives.device import (
    Precision,
    choose_device,
    free_memory,
    matmul_dtype,
    out_of_memory,
)
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.progress import SilentProgress

SIZES = {"cpu": (1, 2, 4, 8), "cuda": (1, 2, 4, 8, 16, 32, 64)}
TRIAL_STEPS = 804
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
    """How many there have been at the end of each step; the search ends after the second."""

    def __init__(self, counter: Operations) -> None:
        self.counter = counter
        self.counts: list[int] = []

    def advance(self) -> None:
        """Note the count."""
        self.counts.append(self.counter.count)
        if len(self.counts) == 2:
            raise EnoughError


Found = dict[str, Any]
"""Of one process: seconds of a step and its peak of memory; FLOPs of its matmuls and operations, if
they were asked for. Or "failed", and why."""


@dataclass(frozen=True)
class Job:
    """What a process is to measure, and how."""

    checkpoint: str
    length: int
    precision: Precision
    device: str
    threads: int
    steps: int


def serve(job: Job) -> None:
    """In a process of its own: measure each variant that a line of its input names."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(job.threads)
    device = choose_device(job.device)  # as a launch does: it settles a GPU's attention too
    problem = padded(make_problem(job.checkpoint, job.length, device))
    for line in sys.stdin:
        if not line.strip():  # are you ready?
            told.write("{}\n")
        else:
            of_variant, count = json.loads(line)
            told.write(json.dumps(attempt(Variant(**of_variant), job, problem, count)) + "\n")
        told.flush()


def attempt(variant: Variant, job: Job, problem: Problem, count: bool) -> Found:
    """`measure`, or that there is not enough memory for it."""
    try:
        return measure(variant, job, problem, count)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return {"failed": "out of memory"}


def measure(variant: Variant, job: Job, problem: Problem, count: bool) -> Found:
    """Of this process alone; `count` FLOPs and operations too."""
    free_memory()
    kind, now = kind_of(job.device), clock(job.device)
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats(job.device)
    warm_up = WARM_UP[kind]
    if variant.name == "fused":
        members = population(job.steps + warm_up, variant.size, job.precision, problem)
        watch = Stopwatch("search", job.steps, warm_up, now)
        until_enough(MaskSearch.search(members, problem, seed=0, progress=watch))
        seconds = watch.seconds
    else:
        loop = PlainLoop(problem, cached=True, frozen=True, precision=job.precision)
        seconds = seconds_of(loop.step, job.steps, warm_up, now)
        del loop
    found: Found = {"seconds": seconds, "peak": peak_of_memory(job.device)}
    if count:
        free_memory()
        found["flops"] = flops_of_step(problem)
        found["operations"] = operations_of_step(variant, job.precision, problem)
    return found


def peak_of_memory(device: str) -> int:
    """Bytes of the device, since they were last counted from 0; of a CPU the process's."""
    if kind_of(device) == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage: its peak is at least that of whoever started the process.
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(peak)


def population(
    steps: int, students: int, precision: Precision, problem: Problem
) -> list[MaskSearch]:
    """Students of several ratios, in a search of so many steps."""
    method = replace(searching(steps, len(problem.train)), precision=precision)
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
        members = population(2, variant.size, precision, problem)
        counted = Counted(counter)
        with counter:
            until_enough(MaskSearch.search(members, problem, seed=0, progress=counted))
        return counted.counts[1] - counted.counts[0]
    loop = PlainLoop(problem, cached=True, frozen=True, precision=precision)
    loop.step()
    with counter:
        loop.step()
    return counter.count


def ceilings(device: str, threads: int, dtype: torch.dtype, now: Now) -> dict[str, float]:
    """What the device reaches: FLOP/s of a large matmul, bytes/s of a large float32 copy."""
    torch.set_num_threads(threads)
    side, words = (2048, 2**27) if device == "cpu" else (8192, 2**30)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(words, device=device)
    target = torch.empty_like(source)

    def best(work: Any) -> float:
        times = []
        for _ in range(6):
            started = now()
            work()
            times.append(now() - started)
        return min(times[1:])

    return {
        "matmul_flops_per_second": 2 * side**3 / best(lambda: torch.mm(left, right)),
        "copy_bytes_per_second": 8 * words / best(lambda: target.copy_(source)),
    }


class Processes:
    """Those that measure a variant at once; they begin together."""

    def __init__(self, job: Job, count: int) -> None:
        own = replace(job, threads=max(1, job.threads // count))
        command = [sys.executable, "-m", "benchmarks.population", "--serve"]
        self.children = [
            subprocess.Popen(
                [*command, json.dumps(asdict(own))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(own.threads)},
            )
            for _ in range(count)
        ]
        self.pipes: list[tuple[IO[str], IO[str]]] = []
        for child in self.children:
            assert child.stdin is not None
            assert child.stdout is not None
            self.pipes.append((child.stdin, child.stdout))

    def ask(self, line: str) -> list[Found]:
        """The answer of each; of one that has ended, that it did."""
        for into, _ in self.pipes:
            with suppress(BrokenPipeError):  # told below
                into.write(line + "\n")
                into.flush()
        answers = [out.readline() for _, out in self.pipes]
        return [
            json.loads(answer) if answer else {"failed": f"ended with {child.wait()}"}
            for answer, child in zip(answers, self.children, strict=True)
        ]

    def end(self) -> None:
        """All of them."""
        for child, (into, out) in zip(self.children, self.pipes, strict=True):
            with suppress(BrokenPipeError):  # what it did not read
                into.close()
            child.wait()
            out.close()


def measured(
    variants: Sequence[Variant], job: Job, counted: Set[Variant]
) -> Iterator[tuple[Variant, list[Found]]]:
    """What these found, one after another, all in the same processes unless one of them ends.

    FLOPs and operations are known of those that are `counted`.
    """
    processes = None
    for variant in variants:
        if processes is None:
            processes = Processes(job, variant.processes)
        ready = processes.ask("")
        question = json.dumps([asdict(variant), variant not in counted])
        found = ready if failed(ready) else processes.ask(question)
        if any(answer.get("failed", "").startswith("ended") for answer in found):
            processes.end()
            processes = None
        yield variant, found
    if processes is not None:
        processes.end()


def failed(answers: Sequence[Found]) -> bool:
    """Whether one of the processes has nothing to tell but why."""
    return any("failed" in answer for answer in answers)


def together(variants: Sequence[Variant], device: str) -> list[list[Variant]]:
    """The groups of those that are measured in the same processes, each group in its order."""
    groups: dict[object, list[Variant]] = {}
    for variant in variants:
        alone = kind_of(device) != "cuda" or variant.processes > 1
        groups.setdefault(variant if alone else variant.length, []).append(variant)
    return list(groups.values())


def row(
    variant: Variant, rounds: list[list[Found]], limits: dict[str, float], moved: int
) -> dict[str, Any]:
    """What the rounds of one variant say together; `moved` are the bytes of a student's step."""
    entry = {"variant": variant.name, "k": variant.size, "length": variant.length}
    failures = [one["failed"] for processes in rounds for one in processes if "failed" in one]
    if failures:
        entry["failed"] = failures[0]
    good = [processes for processes in rounds if not failed(processes)]
    if not good:
        return entry
    students = variant.size
    each = [statistics.mean(one["seconds"] for one in processes) for processes in good]
    seconds = statistics.median(each)
    flops = good[0][0]["flops"] * students
    return {
        **entry,
        "seconds_per_step": seconds,
        "seconds_of_rounds": each,
        "trials_per_hour": students * 3600 / (seconds * TRIAL_STEPS),
        "peak_memory_bytes": int(statistics.median(sum(p["peak"] for p in r) for r in good)),
        "flops_per_step": flops,
        "operations_per_step": good[0][0]["operations"] * variant.processes,
        "share_of_matmul_peak": flops / seconds / limits["matmul_flops_per_second"],
        "share_of_bandwidth": moved * students / seconds / limits["copy_bytes_per_second"],
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The table; how many times the trials an hour of the plain loop, of the same length."""
    table = Table(
        *("variant", "K", "tokens", "ms a step", "trials/h", "x loop"),
        *("GiB", "operations", "matmul", "bytes"),
    )
    loops = {r["length"]: r.get("trials_per_hour") for r in rows if r["variant"] == "plain-loop"}
    for entry in rows:
        names = (entry["variant"], str(entry["k"]), str(entry["length"]))
        if "seconds_per_step" not in entry:
            table.add_row(*names, entry["failed"])
            continue
        loop = loops[entry["length"]]
        table.add_row(
            *names,
            f"{1000 * entry['seconds_per_step']:.1f}",
            f"{entry['trials_per_hour']:.2f}",
            f"{entry['trials_per_hour'] / loop:.2f}" if loop else "",
            f"{entry['peak_memory_bytes'] / 2**30:.2f}",
            str(entry["operations_per_step"]),
            f"{entry['share_of_matmul_peak']:.0%}",
            f"{entry['share_of_bandwidth']:.0%}",
        )
    console.print(table)


def main() -> None:
    """Measure all variants in turn, round after round; print the table, write the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32])
    parser.add_argument("--precision", default="auto", choices=get_args(Precision))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=SUPPRESS)
    options = parsed(parser)
    if options.serve:
        serve(Job(**json.loads(options.serve)))
        return
    kind = kind_of(options.device)
    variants = [
        Variant(name, size, length)
        for length in options.lengths
        for name, sizes in (
            ("plain-loop", [1]),
            ("plain-processes", options.processes),
            ("fused", sorted(options.sizes or SIZES[kind])),
        )
        for size in sizes
    ]
    dtype = matmul_dtype(options.precision, options.device)
    precision: Precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
    steps = options.steps or STEPS[kind]
    limits = ceilings(options.device, options.threads, dtype, clock(options.device))
    free_memory()  # the buffers: others need the device
    document: dict[str, Any] = {
        "device": describe(options.device),
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "student": "MiniLM-L6",
        "precision": precision,
        "batch_size": METHOD.batch_size,
        "steps_of_a_trial": TRIAL_STEPS,
        "rounds": options.rounds,
        "steps": steps,
        **limits,
    }
    found: dict[Variant, list[list[Found]]] = {variant: [] for variant in variants}
    counted: set[Variant] = set()
    console = Console(width=110)
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "teacher")
        model = transformers.BertForSequenceClassification.from_pretrained(checkpoint)
        frozen = sum(weight.numel() for weight in model.bert.embeddings.parameters())
        moved = BYTES_OF_A_WEIGHT[precision] * (model.num_parameters() - frozen)

        def rounds() -> Iterator[tuple[Variant, list[Found]]]:
            for _ in range(options.rounds):
                for group in together(variants, options.device):
                    job = Job(
                        checkpoint=checkpoint,
                        length=group[0].length,
                        precision=precision,
                        device=options.device,
                        threads=options.threads,
                        steps=steps,
                    )
                    yield from measured(group, job, counted)

        total = options.rounds * len(variants)
        for variant, answers in track(rounds(), "measure", total=total, console=console):
            found[variant].append(answers)
            if not failed(answers):
                counted.add(variant)
            document["rows"] = [row(v, r, limits, moved) for v, r in found.items() if r]
            write_json(options.out / f"population-{kind}.json", document)
    show(document["rows"], console)


if __name__ == "__main__":
    main()

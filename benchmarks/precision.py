"""A training step with matmuls in bfloat16, beside the same in float32.

On the quickstart's model and tweets: the stage "prediction+hidden" after the cut, at several
ratios, and a step of each search. One thread, its processor time, so that other work on the machine
counts little. The first row is the limit: a matmul of the model's largest weight alone.

    python -m benchmarks.precision [--rounds 3] [--steps 8]

Prints a table and writes benchmarks/results/precision-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.inner_search import make_problem
from benchmarks.teacher_states import METHOD, RATIOS, RECOVER, seconds_of_step
from benchmarks.timing import describe
from objectives.device import Precision, multiplies_bfloat16, quiet_libraries
from objectives.methods.mask_search import MaskSearch
from objectives.staged_method import StagedMethod

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
TOKENS = 512


def of_matmul(precision: Precision) -> float:
    """Seconds to multiply the activations of 512 tokens by the weight of MiniLM's FFN."""
    dtype = getattr(torch, precision)
    tokens, weight = torch.randn(TOKENS, 384, dtype=dtype), torch.randn(384, 1536, dtype=dtype)
    times = []
    for _ in range(30):
        started = time.process_time()
        tokens @ weight
        times.append(time.process_time() - started)
    return statistics.median(times)


def main() -> None:
    """Both take turns; print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet_libraries()
    search = replace(RECOVER, name="search", searches=True)
    what: dict[str, StagedMethod] = {
        **{
            f"after the cut, ratio {ratio}": replace(METHOD, target_ratio=ratio) for ratio in RATIOS
        },
        "MaskSearch, searching": MaskSearch(stages=(search,)),
    }
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        problem = make_problem(Path(folder), "cpu")
        rows.append({"what": "a matmul", **{name: [of_matmul(name)] for name in PRECISIONS}})
        for label, method in what.items():
            seconds: dict[str, list[float]] = {name: [] for name in PRECISIONS}
            for seed in range(options.rounds):
                for name in PRECISIONS:
                    one = replace(method, precision=name)
                    seconds[name].append(seconds_of_step(one, problem, options.steps, seed))
            rows.append({"what": label, **seconds})
    table = Table("", *(f"ms, {name}" for name in PRECISIONS), "times as fast")
    for row in rows:
        medians = [statistics.median(row[name]) for name in PRECISIONS]
        row["times_as_fast"] = medians[0] / medians[1]
        cells = [f"{1000 * median:.1f}" for median in medians]
        table.add_row(row["what"], *cells, f"{row['times_as_fast']:.2f}")
    Console().print(table)
    document = {
        "device": describe("cpu"),
        "multiplies_bfloat16": multiplies_bfloat16("cpu"),
        "clock": "processor time of one thread",
        "torch": torch.__version__,
        "rows": rows,
    }
    out = Path(__file__).parent / "results" / "precision-cpu.json"
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

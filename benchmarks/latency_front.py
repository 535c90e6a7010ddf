"""FLOPs against milliseconds, for a whole front: every model of it beside the unpruned one.

Exports each point of the front of a finished run as a user would (with ONNX), and times all in
torch and in onnxruntime with `objectives.delivery.bench`: one sequence, 8 and 32, of 128 tokens,
models taking turns. The unpruned model is the twin of the first from which nothing was cut.

    python -m benchmarks.latency_front RUN [--threads 2] [--rounds 20] [--compile]

Prints a table and writes benchmarks/results/latency_front-cpu.json: FLOPs ratio, quartiles of the
milliseconds, and how many times as fast as the unpruned model, with the metric of each.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from objectives.delivery.bench import bench
from objectives.device import quiet_libraries
from objectives.engines.names import ENGINES
from orchestrator.runs.records import read_run
from reports.exporting.export import export
from reports.timings import timings_document, timings_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--compile", action="store_true", help="torch.compile too: minutes a model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    quiet_libraries()
    console = Console(width=130)
    run = read_run(options.run)
    results = {f"trial {row.number}": row.result for row in run.front}
    with TemporaryDirectory() as scratch:
        folders = []
        for name in results:
            number, folder = int(name.removeprefix("trial ")), Path(scratch) / name
            console.print(f"export {name}", *export(run, number, folder, onnx=True).notes)
            folders.append(folder)
        timed = bench(
            folders,
            batches=options.batches,
            lengths=[options.length],
            engines=[engine for engine in ENGINES if engine != "compile" or options.compile],
            rounds=options.rounds,
            threads=options.threads,
            say=console.print,
        )
    named = tuple(replace(timing, model=Path(timing.model).name) for timing in timed.timings)
    timed = replace(timed, timings=named)
    console.print(timings_table(timed))
    document = timings_document(timed)
    for row in document["timings"]:
        result = results.get(row["model"], run.unpruned)
        row |= {"metric": result.metric, "heldout_metric": result.heldout_metric}
    document |= {"run": run.name, "metric": run.metric_name}
    options.out.mkdir(exist_ok=True)
    (options.out / "latency_front-cpu.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What the searches keep of the teacher: GLUE tasks x ratios x seeds, at equal training steps.

MiniLM-L6 is fine-tuned on each task once; the students are cut from it (heads and FFN neurons).
Every method takes the same number of steps on the same rows at the same peak rate and ends within
1% of the ratio:

- `one-shot`: Fisher masks after Kwon et al. 2022 (squares of the loss on the labels, worth per
  FLOP), then distillation of the logits: the method that a search has to beat.
- `one-shot+hidden`: the same masks, and hidden states distilled beside the logits.
- `fisher`: FisherSearch as it is by default, with the stages of this benchmark.
- `anneal`, `seed`, `dap`: the presets of MaskSearch, a third of the steps for the search. `seed`
  chooses heads by a softmax, which no budget reaches: it keeps its own number of heads.
- `random`, `uniform`, `magnitude`, `michel`, `kwon`: the baselines of objectives/methods, distilled
  as `fisher` is; `random-bare` and so on are not trained at all.

    python -m benchmarks.search_quality --glue FOLDER [--tasks sst2 cola rte] [--seeds 0 1 2]
        [--ratios 0.5 0.25 0.1] [--methods one-shot fisher ...] [--spaces heads ffn]
        [--precision float32 | bfloat16] [--layers 1 3 5]

With `--layers` students begin with these layers of the teacher only: with three of six nothing else
is cut at a ratio of a half. FOLDER holds the data set nyu-mll/glue. Writes
benchmarks/results/search_quality.json row by row and goes on where it was stopped; prints the table
of all rows there, and hypervolumes. KL is the mean divergence from the teacher's answers on the
selection split, in nats; seeds change the order of the batches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from benchmarks.replayed import chosen
from objectives.device import quiet_libraries
from objectives.measures.evaluate import predict
from objectives.methods.baselines.head_importance import HeadImportance
from objectives.methods.baselines.magnitude_pruning import MagnitudePruning
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.fisher_pruning import FisherPruning
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import MaskSearch
from objectives.progress import SilentProgress
from objectives.search_method import SearchMethod, SearchResult
from objectives.session import Session
from objectives.staged_method import StagedMethod
from objectives.strategies.one_shot import OneShot
from objectives.text.glue import glue
from objectives.text.task import Task
from objectives.training.stages import Loss, Stage
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from reports.outer_loop import share_covered
from studies._quickstart_data import minilm

RESULTS = Path(__file__).parent / "results" / "search_quality.json"
EPOCHS = {"sst2": 1.0, "cola": 1.5, "rte": 3.0}
TEACHER_EPOCHS = {"sst2": 3, "cola": 3, "rte": 5}
BASELINES: dict[str, OneShot] = {
    "random": RandomPruning(),
    "uniform": RandomPruning(scope="layer"),
    "magnitude": MagnitudePruning(),
    "michel": HeadImportance(),
    "kwon": FisherPruning(),
}
RATIOS = (0.5, 0.25, 0.1)
SPLITS = ("select", "heldout")
RATE = 3e-4
TOLERANCE = 0.01


def task(name: str, folder: str) -> Task:
    """The rows of a task: SST-2 is cut down to 10,000, all of the others are taken."""
    sizes: dict[str, dict[str, int]] = {
        "sst2": {"train": 10_000, "alpha": 1000, "select": 1500, "max_length": 64},
        "cola": {"alpha": 500, "select": 1000, "max_length": 64},
        "rte": {"alpha": 200, "select": 300, "max_length": 128},
    }
    return glue(name, folder, **sizes[name])


def method(name: str, epochs: float, spaces: tuple[str, ...]) -> StagedMethod:
    """A method whose stages take so many epochs in all."""

    def distil(share: float, loss: Loss) -> Stage:
        return Stage(name="recover", epochs=share * epochs, learning_rate=RATE, loss=loss)

    if name in ("one-shot", "one-shot+hidden"):
        loss: Loss = "prediction" if name == "one-shot" else "prediction+hidden"
        return FisherSearch(
            spaces=spaces, squares="loss", flops_weight=1.0, stages=(distil(1, loss),)
        )
    if name == "fisher":
        return FisherSearch(spaces=spaces, stages=(distil(1, "prediction+hidden"),))
    if name.removesuffix("-bare") in BASELINES:
        stages = () if name.endswith("-bare") else (distil(1, "prediction+hidden"),)
        return replace(BASELINES[name.removesuffix("-bare")], spaces=spaces, stages=stages)
    search = Stage(name="search", epochs=epochs / 3, learning_rate=RATE, searches=True)
    searched = (search, distil(2 / 3, "prediction"))
    return MaskSearch.preset(name, spaces=spaces, stages=searched)


def of_layers(layers: list[int] | None) -> str:
    """What the methods of students that begin with some layers are called beside their names."""
    return "" if layers is None else f", layers {' '.join(map(str, layers))}"


def measure(bench: Workbench, searched: SearchMethod, seed: int) -> dict[str, Any]:
    """One trial: what it keeps, how it scores."""
    started, processor = time.perf_counter(), time.process_time()
    [outcome] = type(searched).search(
        [searched], bench.problem, seed=seed, progress=SilentProgress()
    )
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    if not isinstance(outcome, SearchResult):
        return {"failed": repr(outcome)}
    score = bench.score(outcome.model, outcome.architecture)
    wanted, answered = (
        predict(model, bench.select, "cpu").log_softmax(-1)
        for model in (bench.problem.teacher, outcome.model)
    )
    divergence = functional.kl_div(answered, wanted, reduction="batchmean", log_target=True)
    return {
        "kl": float(divergence),
        "select": score.metric,
        "heldout": score.heldout_metric,
        "bytes": score.bytes,
        "reached": score.cost / bench.problem.cost_full,
        "heads": score.widths.get("heads", ()),
        "ffn": score.widths.get("ffn", ()),
        "seconds": seconds,
        "processor_seconds": processor,
    }


def run(arguments: argparse.Namespace, console: Console) -> None:
    """All rows that the file does not hold yet."""
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    spaces = tuple(arguments.spaces)
    for name in arguments.tasks:
        epochs = TEACHER_EPOCHS[name]
        teacher = Teacher(checkpoint=minilm(), epochs=epochs, precision="float32")
        bench = prepare(
            read_inputs(
                task(name, arguments.glue),
                teacher,
                student_layers=None if arguments.layers is None else tuple(arguments.layers),
            ),
            session=Session(cache=arguments.cache),
        )
        for seed in arguments.seeds:
            for ratio in arguments.ratios:
                for label in arguments.methods:
                    key = {
                        "task": name,
                        "spaces": "+".join(spaces),
                        "method": label + of_layers(arguments.layers),
                        "ratio": ratio,
                        "seed": seed,
                        "precision": arguments.precision,
                    }
                    if any(key.items() <= row.items() for row in rows):
                        continue
                    searched = method(label, EPOCHS[name], spaces)
                    trial = replace(
                        searched,
                        target_ratio=ratio,
                        tolerance=TOLERANCE,
                        precision=arguments.precision,
                    )
                    whole = {
                        "teacher_select": bench.unpruned.metric,
                        "teacher_heldout": bench.unpruned.heldout_metric,
                    }
                    rows.append({**key, **whole, **measure(bench, trial, seed)})
                    _write(rows)
                    console.print(rows[-1])


def _write(rows: list[dict[str, Any]]) -> None:
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "epochs": EPOCHS,
        "rows": rows,
    }
    unfinished = RESULTS.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(RESULTS)


def table(rows: list[dict[str, Any]]) -> Table:
    """Means over the seeds, with the standard error of the mean."""
    names = ("task", "spaces", "ratio", "method", "precision")
    columns = (*names, "seeds", "KL", "select", "held out", "reached")
    printed = Table(*columns, title="What the searches keep")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    for key, group in sorted(groups.items(), key=lambda item: (*item[0][:2], -item[0][2])):
        finished = [row for row in group if "failed" not in row]
        cells = [
            _mean([row[column] for row in finished])
            for column in ("kl", "select", "heldout", "reached")
        ]
        printed.add_row(*map(str, key), f"{len(finished)}/{len(group)}", *cells)
    return printed


def fronts(rows: list[dict[str, Any]]) -> Table:
    """Hypervolume of the three ratios together, of methods that have them all, means over seeds.

    Above half of the teacher's metric and below ratio 1, as a share of the ideal: the teacher's
    metric for nothing. Held out: the area under the metrics of the models that the selection split
    chooses at each ratio.
    """
    names = ("task", "spaces", "method", "precision")
    printed = Table(*names, "seeds", "select", "held out", title="Hypervolume, and area held out")
    groups: dict[tuple[str, ...], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if "failed" not in row and row["ratio"] in RATIOS:
            key = tuple(row[name] for name in names)
            groups.setdefault(key, {}).setdefault(row["seed"], []).append(row)
    for key, seeds in sorted(groups.items()):
        whole = [front for front in seeds.values() if len(front) == len(RATIOS)]
        cells = [_mean([_volume(front, split) for front in whole]) for split in SPLITS]
        if whole:
            printed.add_row(*key, str(len(whole)), *cells)
    return printed


def _volume(front: list[dict[str, Any]], split: str) -> float:
    trials = [(row["select"], row["reached"], row[split]) for row in front]
    return share_covered(chosen(trials), front[0][f"teacher_{split}"])


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}" if values else "-"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {error:.4f}"


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(description="What the searches keep of the teacher.")
    parser.add_argument("--glue", required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the teachers")
    parser.add_argument("--tasks", nargs="+", default=list(EPOCHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS)
    parser.add_argument("--layers", nargs="+", type=int, help="that students begin with")
    parser.add_argument("--methods", nargs="+", default=["one-shot", "fisher"])
    parser.add_argument("--spaces", nargs="+", default=["heads", "ffn"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    console = Console()
    quiet_libraries()
    run(arguments, console)
    rows = json.loads(RESULTS.read_text())["rows"]
    console.print(table(rows))
    console.print(fronts(rows))


if __name__ == "__main__":
    main()

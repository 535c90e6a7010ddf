"""Who finds the widths of an elastic student's layers: an order of worth, gradients, or Optuna.

MiniLM-L6 is fine-tuned on CoLA and trained once at many sizes. Then each arm cuts students from it,
which are scored by the mean divergence from the teacher on 500 rows:

- `fisher`: `ElasticSearch` as it is, at 30 ratios spread geometrically.
- `masks`: `MaskSearch` on the elastic student, whose weights stay as they are; half an epoch of
  soft masks that learn from the teacher's answers. One search for each ratio.
- `nsga2`, `tpe`: Optuna over the width of each layer (`heads[0]`, `ffn[0]` and so on), with two
  objectives, divergence and ratio, from nothing; as many students as `--evaluations` says.
- `nsga2 from fisher`, `tpe from fisher`: the same, begun with ten students of `fisher`.

Of each arm the best student within a ratio is judged on 2,500 rows that no training and no choice
has seen.

    OMP_NUM_THREADS=1 python -m benchmarks.elastic_widths --glue FOLDER --cache FOLDER

FOLDER holds nyu-mll/glue. Writes benchmarks/results/elastic_widths.json after each arm and goes on
where it was stopped; prints the rows there. KL in nats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from benchmarks.search_quality import TEACHER_EPOCHS
from maskfront import ElasticSearch, MaskSearch, Stage, Teacher, glue
from objectives.device import quiet_libraries
from objectives.measures.evaluate import predict
from objectives.methods.elastic_search import ELASTIC
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.search_method import SearchResult
from objectives.session import Session
from objectives.staged_method import StagedMethod
from objectives.students.bert.architecture import BertArchitecture
from objectives.text.data import Split
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from studies._quickstart_data import minilm

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "elastic_widths.json"
RATIOS = (0.5, 0.25, 0.1)
WITHIN = 1.01
"""A student that costs this share of a ratio still counts."""
SCORED, JUDGED = 500, 2500
ALONG_THE_PATH, FIRST = 30, 10
"""Students of `fisher`, and those that the samplers may begin with."""
METHOD = ElasticSearch(tolerance=0.01, elastic=replace(ELASTIC, epochs=8))
FROZEN = 1e-12
"""A learning rate that moves no weight of float32."""
MASKS = MaskSearch(
    stages=(Stage(name="search", epochs=0.5, learning_rate=FROZEN, searches=True),),
    alpha_loss="teacher",
    alpha_data="train",
    tolerance=0.01,
)


@dataclass(frozen=True)
class Found:
    """A student that an arm has tried."""

    method: StagedMethod
    kl: float
    """On the rows to choose by."""
    ratio: float


class Judge:
    """Cuts students, and says how far each is from its teacher."""

    def __init__(self, bench: Workbench, seed: int):
        self.problem, self.seed = bench.problem, seed
        order = np.random.default_rng(0).permutation(len(bench.select))
        self.scored = _rows(bench.select, order[:SCORED])
        self.judged = _rows(bench.select, order[SCORED:])
        self._answers = {id(split): self._answer(split) for split in (self.scored, self.judged)}

    def _answer(self, split: Split) -> torch.Tensor:
        return predict(self.problem.teacher, split, self.problem.device).log_softmax(-1)

    def cut(self, method: StagedMethod, problem: Problem | None = None) -> SearchResult:
        """What the method gives."""
        [outcome] = type(method).search(
            [method], problem or self.problem, seed=self.seed, progress=SilentProgress()
        )
        if not isinstance(outcome, SearchResult):
            raise RuntimeError(str(outcome))
        return outcome

    def ratio(self, result: SearchResult) -> float:
        """What a student costs."""
        assert isinstance(result.architecture, BertArchitecture)
        return self.problem.cost.exact(result.architecture) / self.problem.cost_full

    def kl(self, result: SearchResult, split: Split) -> float:
        """Mean divergence of a student from the teacher on these rows."""
        own = predict(result.model, split, self.problem.device).log_softmax(-1)
        wanted = self._answers[id(split)]
        return float(functional.kl_div(own, wanted, reduction="batchmean", log_target=True))

    def elastic_problem(self) -> Problem:
        """The problem of searches that begin with the elastic student."""
        shared = METHOD.shared(self.problem, seed=self.seed, progress=SilentProgress())
        return replace(self.problem, student=shared.model)


def _rows(split: Split, rows: Sequence[int]) -> Split:
    return replace(
        split,
        input_ids=[split.input_ids[row] for row in rows],
        token_type_ids=[split.token_type_ids[row] for row in rows],
        labels=split.labels[np.asarray(rows)],
    )


def path(judge: Judge, number: int) -> list[Found]:
    """Students along the order of the training, of as many sizes, those of `RATIOS` among them."""
    spread = np.geomspace(0.05, 1, number - len(RATIOS)).tolist()
    methods = [replace(METHOD, target_ratio=ratio) for ratio in (*RATIOS, *spread)]
    return [_found(judge, method) for method in methods]


def _found(judge: Judge, method: StagedMethod) -> Found:
    result = judge.cut(method)
    return Found(method, judge.kl(result, judge.scored), judge.ratio(result))


def by_optuna(
    judge: Judge, sampler: BaseSampler, number: int, first: Sequence[Found]
) -> list[Found]:
    """Students of the widths that a sampler asks for."""
    shape, found = judge.problem.cost.shape, []

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        heads, ffn = (
            tuple(trial.suggest_int(f"{name}[{n}]", 0, units) for n in range(shape.layers))
            for name, units in (("heads", shape.heads), ("ffn", shape.ffn))
        )
        found.append(_found(judge, replace(METHOD, heads=heads, ffn=ffn)))
        return found[-1].kl, found[-1].ratio

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for own in first:
        architecture = judge.cut(own.method).architecture
        assert isinstance(architecture, BertArchitecture)
        widths = {"heads": architecture.heads_per_layer, "ffn": architecture.ffn_per_layer}
        study.enqueue_trial({f"{k}[{n}]": w for k, ws in widths.items() for n, w in enumerate(ws)})
    study.optimize(objective, n_trials=number)
    return found


def by_masks(judge: Judge) -> Callable[[float], SearchResult]:
    """The student of soft masks, for a ratio."""
    problem = judge.elastic_problem()
    return lambda ratio: judge.cut(replace(MASKS, target_ratio=ratio), problem)


def rows_of(judge: Judge, arm: str, number: int) -> list[Row]:
    """What the arm has for each ratio."""
    started = time.process_time()
    if arm == "masks":
        search = by_masks(judge)
        results = {ratio: search(ratio) for ratio in RATIOS}
    else:
        if arm == "fisher":
            found = path(judge, ALONG_THE_PATH)
        else:
            first = path(judge, FIRST) if arm.endswith("from fisher") else []
            sampler: BaseSampler = (
                NSGAIISampler(seed=judge.seed, population_size=30)
                if arm.startswith("nsga2")
                else TPESampler(seed=judge.seed)
            )
            found = by_optuna(judge, sampler, number, first)
        results = {}
        for ratio in RATIOS:
            within = [own for own in found if own.ratio <= WITHIN * ratio]
            if within:
                results[ratio] = judge.cut(min(within, key=lambda own: own.kl).method)
    seconds = time.process_time() - started
    return [
        {
            "seed": judge.seed,
            "arm": arm,
            "evaluations": {"masks": len(RATIOS), "fisher": ALONG_THE_PATH}.get(arm, number),
            "ratio": ratio,
            "reached": judge.ratio(result),
            "kl_scored": judge.kl(result, judge.scored),
            "kl": judge.kl(result, judge.judged),
            "sizes": {name: list(kept) for name, kept in result.architecture.sizes().items()},
            "seconds": seconds,
        }
        for ratio, result in results.items()
    ]


def run(arguments: argparse.Namespace, console: Console) -> None:
    """All arms that the file does not hold yet."""
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    own = glue("cola", arguments.glue, alpha=500, select=SCORED + JUDGED, max_length=64)
    teacher = Teacher(checkpoint=minilm(), epochs=TEACHER_EPOCHS["cola"])
    bench = prepare(read_inputs(own, teacher), Session(cache=arguments.cache))
    judge = Judge(bench, arguments.seed)
    judge.cut(METHOD)
    for arm in arguments.arms:
        if not any((row["seed"], row["arm"]) == (arguments.seed, arm) for row in rows):
            rows += rows_of(judge, arm, arguments.evaluations)
            _write(rows, bench)
            console.print(table_of(rows))


def _write(rows: list[Row], bench: Workbench) -> None:
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "device": bench.problem.device,
        "train_rows": len(bench.problem.train),
        "scored_rows": SCORED,
        "judged_rows": JUDGED,
        "rows": rows,
    }
    unfinished = RESULTS.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(RESULTS)


def table_of(rows: list[Row]) -> Table:
    """The rows of the file."""
    table = Table(title="the best student within a ratio, judged on rows that nobody saw")
    for column in ("seed", "arm", "students", "ratio", "reached", "KL, scored", "KL, judged"):
        table.add_column(column, justify="right")
    for row in rows:
        names = ("seed", "arm", "evaluations", "ratio")
        numbers = (f"{row[name]:.4f}" for name in ("reached", "kl_scored", "kl"))
        table.add_row(*(str(row[name]) for name in names), *numbers)
    return table


def main() -> None:
    """Run, or go on, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue", required=True, help="folder of nyu-mll/glue")
    parser.add_argument("--cache", type=Path, required=True, help="folder for teacher and student")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument(
        "--arms",
        nargs="+",
        default=["fisher", "nsga2 from fisher", "tpe from fisher", "masks", "nsga2", "tpe"],
    )
    quiet_libraries()
    run(parser.parse_args(), Console(width=100))
    Console(width=100).print(table_of(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()

"""Strategies over places on a table that has every candidate of a small space with its score."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from rich.progress import track

from benchmarks.harness import RESULTS, Benchmark, Row, groups_of, print_table
from benchmarks.tasks import BATCH, Training, epochs_of
from benchmarks.tasks import search as trained
from maskfront import (
    CellSearch,
    Controller,
    ControllerSettings,
    EditDistance,
    Evolution,
    EvolutionSettings,
    GraphSpace,
    OperationPriority,
    PrioritySettings,
    UserError,
)
from objectives.cache import atomic_write_text
from objectives.measures.evaluate import divergence, predict
from objectives.strategies.strategy import Candidate, Places, Scored, Strategy, Uniform
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE
from orchestrator.sampler import SamplerName, make_sampler

BEST = 0.01
"""Share of the candidates that counts as found."""
AT_ONCE = 20
"""Candidates of a population, and of what is drawn at random before a strategy begins."""
ASKS = 10
"""Asks, repeats included, for each evaluation of the budget."""
LIVELY = ControllerSettings(learning_rate=1e-2, entropy_weight=0.1)
"""Settings of the controller; ENAS' own learning rate is for thousands of scores."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A space whose candidates all have a known score."""

    places: Places
    scores: Mapping[tuple[Any, ...], float]
    """By the choices of a candidate, in the order of the places."""

    @property
    def goal(self) -> float:
        """Lowest score among the best 1%."""
        return sorted(self.scores.values())[-max(1, int(BEST * len(self.scores)))]


def read_table(file: Path) -> Table:
    """Read a table; raise UserError if it lacks candidates."""
    table = json.loads(file.read_text())
    places = {name: tuple(choices) for name, choices in table["places"].items()}
    scores = dict(zip(map(tuple, table["candidates"]), table["scores"], strict=True))
    wanted = math.prod(map(len, places.values()))
    if len(scores) != wanted:
        raise UserError(f"'{file}' has {len(scores)} candidates; its places have {wanted}")
    return Table(places=places, scores=scores)


class Searcher:
    """A strategy with Optuna's `ask` and `tell`."""

    def __init__(self, strategy: Strategy[Scored]):
        self._strategy = strategy

    def ask(self) -> Candidate:
        (candidate,) = self._strategy.propose(1)
        return candidate

    def tell(self, candidate: Candidate, score: float) -> None:
        self._strategy.learn([(candidate, score)])


class OptunaSearcher:
    """A sampler of Optuna, made as a study makes it."""

    def __init__(self, places: Places, seed: int, name: SamplerName):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = make_sampler(seed, 0, AT_ONCE, name=name)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._space = {name: CategoricalDistribution(c) for name, c in places.items()}

    def ask(self) -> Candidate:
        self._trial = self._study.ask(dict(self._space))
        return self._trial.params

    def tell(self, candidate: Candidate, score: float) -> None:
        self._study.tell(self._trial, score)


def ours(make: Callable[[Places, int], Strategy[Scored]]) -> Callable[[Places, int], Searcher]:
    """Wrap a strategy."""
    return lambda places, seed: Searcher(make(places, seed))


STRATEGIES: dict[str, Callable[[Places, int], Searcher | OptunaSearcher]] = {
    "random": ours(Uniform),
    "ageing evolution": ours(
        partial(Evolution, settings=EvolutionSettings(population=AT_ONCE, sample=AT_ONCE // 2))
    ),
    "evolution, worst dies": ours(
        partial(
            Evolution,
            settings=EvolutionSettings(
                population=AT_ONCE, sample=AT_ONCE // 3, dies="worst", mutation=0.25
            ),
        )
    ),
    "operation priority": ours(
        partial(OperationPriority, settings=PrioritySettings(initial=AT_ONCE))
    ),
    "controller": ours(partial(Controller, settings=LIVELY)),
    "edit distance": ours(EditDistance),
    "tpe": partial(OptunaSearcher, name="tpe"),
    "nsgaii": partial(OptunaSearcher, name="nsgaii"),
    "gp": partial(OptunaSearcher, name="gp"),
}


def search(table: Table, name: str, seed: int, budget: int) -> Row:
    """Search until one of the best is found or the budget is spent."""
    searcher = STRATEGIES[name](table.places, seed)
    evaluated: dict[tuple[Any, ...], float] = {}
    asks = 0
    while len(evaluated) < budget and asks < ASKS * budget:
        candidate = searcher.ask()
        asks += 1
        # A candidate that comes again is not evaluated again, as a study trains equal trials once.
        key = tuple(candidate[place] for place in table.places)
        evaluated[key] = table.scores[key]
        if evaluated[key] >= table.goal:
            break
        searcher.tell(candidate, evaluated[key])
    best = max(evaluated.values())
    reached = best >= table.goal
    return {
        "strategy": name,
        "seed": seed,
        "evaluations": len(evaluated) if reached else budget,
        "asks": asks,
        "found": reached,
        "best": best,
    }


class Strategies(Benchmark[Table]):
    """How many models does a strategy train until it has one of the best 1%?

    The table is a JSON of `places`, `candidates` and `scores`, the higher the better; by default
    that of `cell_table`. A row that was not `found` has the budget as its evaluations. CMA-ES is
    not among the samplers: it moves numbers, and places have categories.
    """

    name = "strategies"
    tasks = ()
    seeds = tuple(range(20))
    cache = False
    grid = {"strategy": tuple(STRATEGIES), "budget": (300,)}
    about = {"best_share": BEST}

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the file of the table."""
        parser = super().parser()
        parser.add_argument("--table", type=Path, default=RESULTS / "cell_table.json")
        return parser

    def prepare(self, key: Row) -> Table:
        """Read the table."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return read_table(self.asked.table)

    def key(self, key: Row, table: Table) -> Row:
        """Return the key, with the name of the table."""
        return {"table": self.asked.table.stem, **key}

    def rows(self, key: Row, table: Table) -> list[Row]:
        """Run one search."""
        return [search(table, key["strategy"], key["seed"], key["budget"])]

    def show(self, rows: list[Row]) -> None:
        """Print medians."""
        columns = ("table", "budget", "strategy")
        lines = [
            [
                *key,
                len(group),
                *(f"{median(row[name] for row in group):g}" for name in ("evaluations", "asks")),
                sum(row["found"] for row in group),
            ]
            for key, group in groups_of(rows, columns).items()
        ]
        title = f"evaluations until one of the best {BEST:.0%}, medians"
        print_table(title, [*columns, "seeds", "evaluations", "asks", "found"], lines)


class CellTable(Training):
    """What is each cell of a small space worth, trained once? The table of `strategies`.

    A cell has three nodes; each reads one state before it by one of five operations. Spellings of
    one cell share its training. The score is minus the divergence from the teacher, in nats.
    """

    name = "cell_table"
    tasks = ()
    seeds = (0,)
    grid = {"steps": (250,)}
    space = GraphSpace(nodes=3, operations=("conv3", "conv7", "gated", "max3", IDENTITY), edges=1)
    width = 32

    def run(self) -> None:
        """Train what is not trained, write the table, print its ends."""
        asked, [steps] = self.asked, self.asked.steps
        asked.task, asked.glue = "tweets", None
        bench = self.prepare({})
        problem = bench.problem
        logits = predict(problem.teacher, bench.select, problem.device)
        # Scores stay beside the teacher, so that a run that was stopped goes on.
        file = asked.cache / f"cells-{problem.fingerprint}-{steps}.json"
        known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        candidates = list(product(*self.space.places.values()))
        cells = []
        for candidate in candidates:
            places = dict(zip(self.space.places, candidate, strict=True))
            cells.append(Genotype(self.width, nodes=self.space.graph(places).nodes))
        each = list(dict.fromkeys(cells))
        for cell in track(each, f"{len(each)} cells"):
            if cell.to_json() in known:
                continue
            method = CellSearch(
                width=self.width,
                operations=cell.operations or (NONE,),
                nodes=cell.nodes,
                epochs=epochs_of(steps, bench),
                batch_size=BATCH,
            )
            model = trained(method, problem, asked.seeds[0]).model
            answers = predict(model, bench.select, problem.device)
            known[cell.to_json()] = -divergence(answers, logits, bench.select)
            atomic_write_text(file, json.dumps(known))
        scores = {cell: round(known[cell.to_json()], 5) for cell in each}
        table = {"places": dict(self.space.places), "candidates": candidates}
        text = json.dumps({**table, "scores": [scores[cell] for cell in cells]})
        atomic_write_text(asked.out / "cell_table.json", text + "\n")
        ranked = sorted(each, key=scores.__getitem__, reverse=True)
        print_table(
            f"{len(candidates)} candidates, {len(each)} cells",
            ["operations", "KL"],
            [[" ".join(c.blocks), f"{-scores[c]:.4f}"] for c in [*ranked[:5], *ranked[-5:]]],
        )

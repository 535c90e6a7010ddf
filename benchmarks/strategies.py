"""How many models does a strategy train until it has one of the best 1%?

A table has every candidate of a space with its score, so that a search costs no training. The
strategies over places and Optuna's samplers search it, from 20 seeds, until they have evaluated one
of the best 1% of its candidates or spent `--budget`. A candidate that comes again is not evaluated
again, as a study trains equal trials once: `asks` counts these too, ten times the budget at most.

    OMP_NUM_THREADS=1 python -m benchmarks.strategies TABLE.json
        [--seeds 0 1 ...] [--budget 300] [--strategies random tpe ...]

TABLE.json holds `places` (of each place its choices), `candidates` (of each the choices, in the
order of the places) and `scores`, the higher the better. Writes benchmarks/results/strategies.json
row by row and goes on where it was stopped; prints medians. A row that was not `found` has the
budget as its evaluations. CMA-ES is not among the samplers: it moves numbers, and places have
categories.
"""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning

from benchmarks.harness import Row, Rows, groups_of, parsed, parser_of, print_table
from maskfront import (
    Controller,
    ControllerSettings,
    EditDistance,
    Evolution,
    EvolutionSettings,
    OperationPriority,
    PrioritySettings,
    UserError,
)
from objectives.strategies.strategy import Candidate, Places, Scored, Strategy, Uniform
from orchestrator.sampler import SamplerName, make_sampler

BEST = 0.01
"""Share of the candidates that counts as found."""
AT_ONCE = 20
"""Candidates of a population, and of what is drawn at random before a strategy begins."""
ASKS = 10
"""Asks, repeats included, for each evaluation of the budget."""
LIVELY = ControllerSettings(learning_rate=1e-2, entropy_weight=0.1)
"""ENAS' own learning rate is for thousands of scores."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A space of which all is known."""

    places: Places
    scores: Mapping[tuple[Any, ...], float]
    """By the choices of a candidate, in the order of the places."""

    @property
    def goal(self) -> float:
        """The lowest score among the best."""
        return sorted(self.scores.values())[-max(1, int(BEST * len(self.scores)))]


def read_table(file: Path) -> Table:
    """Raises UserError for a table that lacks candidates."""
    read = json.loads(file.read_text())
    places = {name: tuple(choices) for name, choices in read["places"].items()}
    scores = dict(zip(map(tuple, read["candidates"]), read["scores"], strict=True))
    wanted = math.prod(map(len, places.values()))
    if len(scores) != wanted:
        raise UserError(f"'{file}' has {len(scores)} candidates; its places have {wanted}")
    return Table(places=places, scores=scores)


class Searcher:
    """A strategy as `ask` and `tell`."""

    def __init__(self, strategy: Strategy[Scored]):
        self._strategy = strategy

    def ask(self) -> Candidate:
        (candidate,) = self._strategy.propose(1)
        return candidate

    def tell(self, candidate: Candidate, score: float) -> None:
        self._strategy.learn([(candidate, score)])


class OptunaSearcher:
    """One of Optuna's samplers, as a study of ours makes it."""

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
    """The strategy as a searcher."""
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
    """One search: how far it came, and after how many evaluations."""
    searcher = STRATEGIES[name](table.places, seed)
    evaluated: dict[tuple[Any, ...], float] = {}
    asks = 0
    while len(evaluated) < budget and asks < ASKS * budget:
        candidate = searcher.ask()
        asks += 1
        key = tuple(candidate[place] for place in table.places)
        evaluated[key] = table.scores[key]
        if evaluated[key] >= table.goal:
            break
        searcher.tell(candidate, evaluated[key])
    best = max(evaluated.values())
    found = best >= table.goal
    return {
        "strategy": name,
        "seed": seed,
        "evaluations": len(evaluated) if found else budget,
        "asks": asks,
        "found": found,
        "best": best,
    }


def main() -> None:
    """Search, write and print."""
    parser = parser_of(__doc__, seeds=range(20))
    parser.add_argument("table", type=Path, help="JSON of places, candidates and scores")
    parser.add_argument("--budget", type=int, default=300, help="evaluations of a search")
    parser.add_argument(
        "--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES)
    )
    asked = parsed(parser)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = read_table(asked.table)
    rows = Rows(asked.out / "strategies.json", best_share=BEST)
    about = {"table": asked.table.stem, "budget": asked.budget}
    for seed in asked.seeds:
        for name in asked.strategies:
            if not rows.has({**about, "strategy": name, "seed": seed}):
                rows.add({**about, **search(table, name, seed, asked.budget)})
    groups = groups_of(rows.rows, ("table", "budget", "strategy"))
    print_table(
        f"evaluations until one of the best {BEST:.0%}, medians",
        ("table", "budget", "strategy", "seeds", "evaluations", "asks", "found"),
        [
            (
                *key,
                len(group),
                *(
                    f"{statistics.median(row[n] for row in group):g}"
                    for n in ("evaluations", "asks")
                ),
                sum(row["found"] for row in group),
            )
            for key, group in groups.items()
        ],
    )


if __name__ == "__main__":
    main()

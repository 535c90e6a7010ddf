"""Promises of a run's page, on rows drawn again from the run."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Benchmark, Row, print_table
from maskfront import load_run
from objectives.combining.cascade import pairs_of, threefold
from objectives.combining.gate import cheapest_agreeing
from objectives.combining.members import GateRows as Judges
from objectives.combining.members import Member
from objectives.measures.bootstrap import bootstrap_interval
from objectives.metric import Labels, Logits, Metric, metric_value
from orchestrator.runs.answers import read_answers, read_rows, write_answers, write_rows
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.pareto import ParetoView, pareto_view
from reports.recommended import expected_of, recommendations
from reports.speed import read_speeds

GATES, MARGINS = (0.95, 0.97, 0.98), (0.01, 0.03)
MOST = (2, 3)
"""Models that a cascade may have."""
RULES = ("cheapest within", "cheapest within, by metric")
EXPECTED = "expected metric"

Array = NDArray[Any]
Drawn = NDArray[np.int64]
"""(rows,) indices among all rows."""


@dataclass(frozen=True, eq=False)
class Pool:
    """All rows of a run: its selection rows and, after them, its held-out rows."""

    run: RunRecord
    labels: Labels
    logits: dict[int | None, Logits]
    """By the number of a finished trial; None is the unpruned model."""

    @property
    def metric(self) -> Metric:
        """Metric of the task."""
        return cast("Metric", self.run.definition["task.metric"])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.logits[None].shape[-1])


def pool_of(run: RunRecord) -> Pool:
    """Put the rows of both splits together."""
    judged = read_rows(run)
    assert judged is not None, "the run kept no rows"
    logits: dict[int | None, Mapping[str, Logits]] = {None: judged.unpruned}
    for trial in run.finished:
        kept = read_answers(run, trial.number)
        assert kept is not None, f"trial {trial.number} kept no answers"
        logits[trial.number] = kept

    def joined(splits: Mapping[str, Array]) -> Array:
        return np.concatenate([splits["select"], splits["heldout"]])

    together = {number: joined(splits) for number, splits in logits.items()}
    return Pool(run, joined(judged.labels), together)


def draws_of(pool: Pool, rows: int, draws: int) -> Iterator[Drawn]:
    """Draw so many rows, so many times, the same for every rule."""
    for seed in range(draws):
        yield np.random.default_rng(seed).integers(len(pool.labels), size=rows)


def prices_of(run: RunRecord) -> dict[int | None, float]:
    """Milliseconds from text to label of the fastest engine of each model that was timed so; of a
    run without such times the costs of its front."""
    speeds = [speed for speed in read_speeds(run) if speed.texts]
    if not speeds:
        return {None: run.unpruned.cost} | {trial.number: trial.result.cost for trial in run.front}
    numbers: list[int | None] = [None, *speeds[0].models]
    return {number: min(speed.model(number).milliseconds for speed in speeds) for number in numbers}


def of_gates(pool: Pool, rows: int, draws: int) -> list[Row]:
    """Count how often the cheapest cascade that passed a gate fails it on all rows."""
    original, prices = pool.logits[None].argmax(-1), prices_of(pool.run)
    keys = list(product(GATES, MOST))
    broken, costs = Counter[Any](), {key: list[float]() for key in keys}
    reached = {key: list[float]() for key in keys}
    for drawn in draws_of(pool, rows, draws):
        roles = {"select": drawn, "heldout": np.arange(len(original))}
        members = [
            Member(number, cost, {role: pool.logits[number][of] for role, of in roles.items()})
            for number, cost in prices.items()
        ]
        labels = {role: original[of] for role, of in roles.items()}
        judges = Judges(metric="agreement", labels=labels, original=labels, classes=pool.classes)
        pairs = list(pairs_of(members, judges))
        for key in keys:
            gate, most = key
            three = threefold if most == 3 else lambda *_: ()
            with patch("objectives.combining.gate.threefold", three):
                cascade = cheapest_agreeing(pairs, gate)
            if cascade is not None:
                broken[key] += cascade.heldout_agreement < gate
                costs[key].append(cascade.heldout_cost / prices[None])
                reached[key].append(cascade.heldout_agreement)
    return [
        {
            **row_of("gate", key[0], draws, broken[key], costs[key]),
            "most": key[1],
            "mean_agreement": round(fmean(reached[key]), 4) if reached[key] else None,
        }
        for key in keys
    ]


def redrawn(pool: Pool, drawn: Drawn, folder: Path) -> ParetoView:
    """Return the run as its page would show it with these selection rows and all as held-out."""
    copy = RunFolder(folder)
    copy.rows.unlink(missing_ok=True)

    def roles(everything: Array) -> dict[str, Array]:
        return {"select": everything[drawn], "heldout": everything}

    def judged(number: int | None) -> dict[str, Any]:
        answers, labels = roles(pool.logits[number].argmax(-1)), roles(pool.labels)
        metric = {
            role: metric_value(pool.metric, labels[role], answers[role], classes=pool.classes)
            for role in answers
        }
        asked = pool.metric, labels["select"], answers["select"], pool.classes
        return {
            "metric": metric["select"],
            "heldout_metric": metric["heldout"],
            "interval": bootstrap_interval(*asked),
        }

    write_rows(copy, roles(pool.labels), roles(pool.logits[None]), {})
    trials = []
    for trial in pool.run.finished:
        copy.trial(trial.number).mkdir(parents=True, exist_ok=True)
        write_answers(copy.answers(trial.number), roles(pool.logits[trial.number]))
        result = replace(trial.result, **judged(trial.number))
        trials.append(replace(trial, result=result))
    unpruned = replace(pool.run.unpruned, **judged(None))
    return pareto_view(replace(pool.run, folder=folder, trials=tuple(trials), unpruned=unpruned))


def of_rules(pool: Pool, rows: int, draws: int) -> list[Row]:
    """Count how often the model that the page names loses more than its margin on all rows."""
    broken = {(rule, margin): 0 for rule in RULES for margin in MARGINS}
    costs: dict[tuple[str, float], list[float]] = {key: [] for key in broken}
    with TemporaryDirectory() as folder:
        for drawn in draws_of(pool, rows, draws):
            view = redrawn(pool, drawn, Path(folder))
            for rule, seen in zip(RULES, (view, replace(view, paired=None)), strict=True):
                named = {why: one.trial for one in recommendations(seen) for why in one.reasons}
                for margin in MARGINS:
                    trial = named.get(f"cheapest within {margin:.0%}")
                    if trial is not None:
                        kept = trial.result.heldout_metric / view.run.unpruned.heldout_metric
                        broken[rule, margin] += kept < 1 - margin
                        costs[rule, margin].append(trial.result.ratio)
    return [row_of(*key, draws, broken[key], costs[key]) for key in broken]


def of_expectation(pool: Pool, rows: int, draws: int) -> list[Row]:
    """Mean errors of the metric of the model within 1%, and of the one that the page expects."""
    metric, expected = list[float](), list[float]()
    with TemporaryDirectory() as folder:
        for drawn in draws_of(pool, rows, draws):
            one = expected_of(redrawn(pool, drawn, Path(folder)))
            if one is not None and one.expected is not None:
                result = one.trial.result
                metric.append(result.metric - result.heldout_metric)
                expected.append(one.expected - result.heldout_metric)
    errors = {
        "too_high": metric,
        "expected_too_high": expected,
        "error": [abs(value) for value in metric],
        "expected_error": [abs(value) for value in expected],
    }
    # No draw may have a model within 1%.
    rounded = {name: round(fmean(own), 5) if own else None for name, own in errors.items()}
    return [{"rule": EXPECTED, "promise": 0.01, "named": len(metric), **rounded}]


def row_of(rule: str, promise: float, draws: int, broken: int, costs: list[float]) -> Row:
    """Return a row; the cost is a share of the unpruned model's, where a model was named."""
    return {
        "rule": rule,
        "promise": promise,
        "named": len(costs),
        "share_broken": round(broken / draws, 4),
        "mean_cost": round(fmean(costs), 4) if costs else None,
    }


JUDGES = {"gate": of_gates, RULES[0]: of_rules, EXPECTED: of_expectation}


class Gate(Benchmark[Pool]):
    """Do a gate and "cheapest within 1%" hold on rows that chose nothing?

    The selection and the held-out rows of a run are taken for all rows that there are. Some, drawn
    with replacement, are the selection rows of one draw; all say whether a promise was kept.
    Nothing is trained. `share_broken` is of all draws.
    """

    name = "gate"
    tasks = ()
    seeds = ()
    cache = False
    grid = {"rows": (500, 1000, 2000, 4000), "draws": (200,), "rule": tuple(JUDGES)}

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the run."""
        parser = super().parser()
        parser.add_argument("--run", type=Path, required=True, help="folder of a finished run")
        return parser

    def prepare(self, key: Row) -> Pool:
        """Read the answers of the run."""
        return pool_of(load_run(self.asked.run))

    def key(self, key: Row, pool: Pool) -> Row:
        """Return the key, with the study and the number of its rows."""
        return {"study": pool.run.name, "of": len(pool.labels), **key}

    def rows(self, key: Row, pool: Pool) -> list[Row]:
        """Draw, by the code of a rule."""
        return JUDGES[key["rule"]](pool, key["rows"], key["draws"])

    def show(self, rows: list[Row]) -> None:
        """Print the promises, and the expected metrics."""
        columns = ("study", "rule", "promise", "rows", "most", "named", "share_broken", "mean_cost")
        columns = (*columns, "mean_agreement")
        promises = [[row.get(name) for name in columns] for row in rows if row["rule"] != EXPECTED]
        print_table("promises that all rows broke", columns, promises)
        errors = ("too_high", "expected_too_high", "error", "expected_error")
        columns = ("study", "rows", "named", *errors)
        lines = [[row[name] for name in columns] for row in rows if row["rule"] == EXPECTED]
        print_table("the metric of the model within 1%, less that on all rows", columns, lines)

"""Do our promises hold on rows that chose nothing? Draws of the judging rows of a run, repeated.

The selection and the held-out rows of a run are put together and taken for all rows that there are.
Some, drawn at random with replacement, are the selection rows of one draw. All rows then say
whether a promise was kept:

    gate                        the cheapest cascade that agrees on this share of all rows
    cheapest within             the model that the page calls so: it loses at most this share
    cheapest within, by metric  the same by the metric alone, without a paired comparison
    expected metric             what the page expects of that model on other rows

Costs are FLOPs, answers those that the run kept: nothing is trained.

    python -m benchmarks.gate RUN [--draws 200] [--rows 500 1000 1500]
        [--gates 0.9 0.95 0.98] [--margins 0.01 0.03]

Writes benchmarks/results/gate.json and goes on where it was stopped. `named` counts the draws in
which a model was named, `share_broken` is the share of all draws in which it then broke its
promise, `mean_cost` the share of the unpruned model's cost over the draws that named one. Of the
expected metric there are mean errors instead, of it and of the metric itself: signed ("too_high")
and absolute ("error").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, Rows, parsed, parser_of, print_table
from maskfront import load_run
from objectives.combining.cascade import pairs_of
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

RULES = ("cheapest within", "cheapest within, by metric")
EXPECTED = "expected metric"

Array = NDArray[Any]
Drawn = NDArray[np.int64]
"""(rows,) places among all rows."""


@dataclass(frozen=True, eq=False)
class Pool:
    """All rows of a run of classes: its selection rows and, after them, its held-out rows."""

    run: RunRecord
    labels: Labels
    logits: dict[int | None, Logits]
    """Of each finished trial; None is the unpruned model."""

    @property
    def metric(self) -> Metric:
        """That of the task."""
        return cast("Metric", self.run.definition["task.metric"])

    @property
    def classes(self) -> int:
        """How many the task has."""
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

    def whole(own: Mapping[str, Array]) -> Array:
        return np.concatenate([own["select"], own["heldout"]])

    together = {number: whole(own) for number, own in logits.items()}
    return Pool(run, whole(judged.labels), together)


def draws_of(pool: Pool, rows: int, draws: int) -> Iterator[Drawn]:
    """So many draws of so many rows, the same for every rule."""
    for seed in range(draws):
        yield np.random.default_rng(seed).integers(len(pool.labels), size=rows)


def of_gates(pool: Pool, gates: list[float], rows: int, draws: int) -> list[Row]:
    """How often the cheapest cascade that passed a gate does not pass it on all rows."""
    original, full = pool.logits[None].argmax(-1), pool.run.unpruned.cost
    prices = {None: full} | {trial.number: trial.result.cost for trial in pool.run.front}
    broken, costs = Counter[float](), {gate: list[float]() for gate in gates}
    for drawn in draws_of(pool, rows, draws):
        roles = {"select": drawn, "heldout": np.arange(len(original))}
        members = [
            Member(number, cost, {role: pool.logits[number][of] for role, of in roles.items()})
            for number, cost in prices.items()
        ]
        said = {role: original[of] for role, of in roles.items()}
        judges = Judges(metric="agreement", labels=said, original=said, classes=pool.classes)
        pairs = list(pairs_of(members, judges))
        for gate in gates:
            found = cheapest_agreeing(pairs, gate)
            if found is not None:
                broken[gate] += found.heldout_agreement < gate
                costs[gate].append(found.cost / full)
    return [row_of("gate", gate, rows, draws, broken[gate], costs[gate]) for gate in gates]


def redrawn(pool: Pool, drawn: Drawn, folder: Path) -> ParetoView:
    """The run as its page would show it, had these been its selection rows and all its held-out
    ones. The answers are written into a folder of its own."""
    own = RunFolder(folder)
    own.rows.unlink(missing_ok=True)

    def roles(whole: Array) -> dict[str, Array]:
        return {"select": whole[drawn], "heldout": whole}

    def judged(number: int | None) -> dict[str, Any]:
        said, labels = (roles(one) for one in (pool.logits[number].argmax(-1), pool.labels))
        metric = {
            role: metric_value(pool.metric, labels[role], said[role], classes=pool.classes)
            for role in said
        }
        asked = pool.metric, labels["select"], said["select"], pool.classes
        return {
            "metric": metric["select"],
            "heldout_metric": metric["heldout"],
            "interval": bootstrap_interval(*asked),
        }

    write_rows(own, roles(pool.labels), roles(pool.logits[None]), {})
    trials = []
    for trial in pool.run.finished:
        own.trial(trial.number).mkdir(parents=True, exist_ok=True)
        write_answers(own.answers(trial.number), roles(pool.logits[trial.number]))
        result = replace(trial.result, **judged(trial.number))
        trials.append(replace(trial, result=result))
    unpruned = replace(pool.run.unpruned, **judged(None))
    return pareto_view(replace(pool.run, folder=folder, trials=tuple(trials), unpruned=unpruned))


def of_rules(pool: Pool, margins: list[float], rows: int, draws: int) -> list[Row]:
    """How often the model that the page names loses more than its margin on all rows."""
    broken = {(rule, margin): 0 for rule in RULES for margin in margins}
    costs: dict[tuple[str, float], list[float]] = {key: [] for key in broken}
    with TemporaryDirectory() as folder:
        for drawn in draws_of(pool, rows, draws):
            view = redrawn(pool, drawn, Path(folder))
            for rule, seen in zip(RULES, (view, replace(view, paired=None)), strict=True):
                named = {why: one.trial for one in recommendations(seen) for why in one.reasons}
                for margin in margins:
                    trial = named.get(f"cheapest within {margin:.0%}")
                    if trial is not None:
                        kept = trial.result.heldout_metric / view.run.unpruned.heldout_metric
                        broken[rule, margin] += kept < 1 - margin
                        costs[rule, margin].append(trial.result.ratio)
    return [row_of(*key, rows, draws, broken[key], costs[key]) for key in broken]


def of_expectation(pool: Pool, margins: list[float], rows: int, draws: int) -> list[Row]:
    """How far the metric of the model that the page names within 1%, and the one that the page
    expects of it, are from what that model has on all rows."""
    metric, expected = list[float](), list[float]()
    with TemporaryDirectory() as folder:
        for drawn in draws_of(pool, rows, draws):
            one = expected_of(redrawn(pool, drawn, Path(folder)))
            if one is not None and one.expected is not None:
                result = one.trial.result
                metric.append(result.metric - result.heldout_metric)
                expected.append(one.expected - result.heldout_metric)
    errors = {
        "too_high": fmean(metric),
        "expected_too_high": fmean(expected),
        "error": fmean(map(abs, metric)),
        "expected_error": fmean(map(abs, expected)),
    }
    about = {"rows": rows, "draws": draws, "named": len(metric)}
    rounded = {name: round(value, 5) for name, value in errors.items()}
    return [{"rule": EXPECTED, "promise": margin, **about, **rounded} for margin in margins]


def row_of(
    rule: str, promise: float, rows: int, draws: int, broken: int, costs: list[float]
) -> Row:
    """A row of the file."""
    return {
        "rule": rule,
        "promise": promise,
        "rows": rows,
        "draws": draws,
        "named": len(costs),
        "share_broken": round(broken / draws, 4),
        "mean_cost": round(fmean(costs), 4) if costs else None,
    }


def main() -> None:
    """Draw, or go on, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1000, 1500])
    parser.add_argument("--gates", type=float, nargs="*", default=[0.9, 0.95, 0.98])
    parser.add_argument(
        "--margins", type=float, nargs="*", default=[0.01, 0.03], choices=[0.01, 0.03]
    )
    asked = parsed(parser)
    pool = pool_of(load_run(asked.run))
    rows = Rows(asked.out / "gate.json")
    about = {"study": pool.run.name, "of": len(pool.labels)}
    for drawn in asked.rows:
        key = {**about, "rows": drawn, "draws": asked.draws}

        def missing(rule: str, promises: list[float], key: Row = key) -> list[float]:
            return [one for one in promises if not rows.has({**key, "rule": rule, "promise": one})]

        for rule, promises, judge in (
            ("gate", asked.gates, of_gates),
            (RULES[0], asked.margins, of_rules),
            (EXPECTED, [0.01] if 0.01 in asked.margins else [], of_expectation),
        ):
            if wanted := missing(rule, promises):
                rows.add(*({**about, **row} for row in judge(pool, wanted, drawn, asked.draws)))
    columns = ("study", "rule", "promise", "rows", "named", "share_broken", "mean_cost")
    kept = [[row[name] for name in columns] for row in rows.rows if row["rule"] != EXPECTED]
    print_table(f"promises that all rows broke, of {asked.draws} draws", columns, kept)
    columns = ("study", "rows", "named", "too_high", "expected_too_high", "error", "expected_error")
    errors = [[row[name] for name in columns] for row in rows.rows if row["rule"] == EXPECTED]
    print_table("the metric of the model within 1%, beside that on all rows", columns, errors)


if __name__ == "__main__":
    main()

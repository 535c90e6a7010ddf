"""Does a gate hold on rows that chose nothing? Draws of the judging rows of a run, again and again.

The selection and the held-out rows of a run are put together and taken for all rows that there are.
Some, drawn at random with replacement, choose a cascade of the run's models by a gate; all of them
say whether it passes. Costs are FLOPs, answers
those that the run kept: nothing is trained.

    python -m benchmarks.gate RUN [--draws 200] [--rows 200 500 1000] [--gates 0.9 0.95 0.98]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.harness import print_table
from maskfront import load_run
from objectives.combining.cascade import pairs_of
from objectives.combining.gate import cheapest_agreeing
from objectives.combining.members import Member, Rows
from orchestrator.runs.answers import read_answers, read_rows


def main() -> None:
    """Draw, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[200, 500, 1000])
    parser.add_argument("--gates", type=float, nargs="+", default=[0.9, 0.95, 0.98])
    asked = parser.parse_args()
    run = load_run(asked.run)
    judged = read_rows(run)
    assert judged is not None, "the run kept no rows"
    models = {None: (run.unpruned.cost, judged.unpruned)}
    for trial in run.front:
        kept = read_answers(run, trial)
        assert kept is not None, f"trial {trial.number} kept no answers"
        models[trial.number] = (trial.result.cost, kept)
    pooled = {
        number: (cost, np.concatenate([own["select"], own["heldout"]]))
        for number, (cost, own) in models.items()
    }
    original = pooled[None][1].argmax(-1)
    lines = []
    for gate in asked.gates:
        for rows in asked.rows:
            below, costs = 0, []
            for seed in range(asked.draws):
                drawn = np.random.default_rng(seed).integers(len(original), size=rows)
                roles = {"select": drawn, "heldout": np.arange(len(original))}
                members = [
                    Member(number, cost, {role: own[of] for role, of in roles.items()})
                    for number, (cost, own) in pooled.items()
                ]
                said = {role: original[of] for role, of in roles.items()}
                classes = judged.unpruned["select"].shape[-1]
                judges = Rows(metric="agreement", labels=said, original=said, classes=classes)
                found = cheapest_agreeing(list(pairs_of(members, judges)), gate)
                if found is not None:
                    below += found.heldout_agreement < gate
                    costs.append(found.cost / run.unpruned.cost)
            share = f"{np.mean(costs):.3f}" if costs else ""
            lines.append((gate, rows, len(costs), f"{below / asked.draws:.3f}", share))
    print_table(
        f"{asked.draws} draws of the rows that choose, from {len(original)}",
        ("gate", "rows", "passed", "below it on all", "mean share of FLOPs"),
        lines,
    )


if __name__ == "__main__":
    main()

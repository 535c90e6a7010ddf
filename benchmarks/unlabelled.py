"""What text without labels gives students: the same steps on the labelled rows and on all text.

MiniLM-L6 is fine-tuned on the labelled rows of a task alone. `labelled` students distil on these
rows, `with text` on these and on others whose labels nobody reads: of the tweets 4,000 rows and all
that are left, of SST-2 10,000 and all that are left. Both take the same number of steps at the same
rates: `elastic` trains one student for all ratios, three sizes a step with 32 rows each; `alone`
one for each ratio, 32 rows a step.

    OMP_NUM_THREADS=1 python -m benchmarks.unlabelled --task sst2 --glue FOLDER --cache FOLDER

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/unlabelled.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers on the selection split, in nats.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.elastic import RATE, elastic, workbench
from benchmarks.search_quality import measure
from maskfront import ElasticSearch, FisherSearch, Stage, StagedMethod
from objectives.device import quiet_libraries

Row = dict[str, Any]

RATIOS = (0.5, 0.25, 0.1)
RESULTS = Path(__file__).parent / "results" / "unlabelled.json"
ARMS = ("labelled", "with text")
BATCH = 32
STEPS = {"elastic": 417, "alone": 375}
"""The first are those of the quickstart."""


def methods(rows: int) -> dict[str, StagedMethod]:
    """Elastic and lone students that take their `STEPS` where train has so many rows."""
    of_all = elastic(STEPS["elastic"] * BATCH * ElasticSearch().sizes / rows)
    stage = Stage(
        name="recover",
        epochs=STEPS["alone"] * BATCH / rows,
        learning_rate=RATE,
        loss="prediction+hidden",
    )
    return {"elastic": of_all, "alone": FisherSearch(tolerance=0.01, stages=(stage,))}


def table_of(rows: list[Row]) -> Table:
    """Means over the seeds."""
    table = Table(title="the same steps with and without text that nobody labelled")
    columns = ("task", "students", "steps", "arm", "ratio")
    for column in (*columns, "seeds", "KL", "selection", "held out"):
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    for key, group in groups.items():
        means = (
            statistics.fmean(row[name] for row in group) for name in ("kl", "select", "heldout")
        )
        table.add_row(*map(str, key), str(len(group)), *(f"{mean:.4f}" for mean in means))
    return table


def main() -> None:
    """Run, or go on, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--students", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    arguments = parser.parse_args()
    quiet_libraries()
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for arm in ARMS:
        text = arm == "with text"
        bench = workbench(arguments.task, arguments.glue, arguments.cache, all_text=text)
        for seed in arguments.seeds:
            for students, method in methods(len(bench.problem.train)).items():
                common = {"task": arguments.task, "arm": arm, "seed": seed, "students": students}
                if students not in arguments.students or any(
                    common.items() <= row.items() for row in rows
                ):
                    continue
                for ratio in RATIOS:
                    found = measure(bench, replace(method, target_ratio=ratio), seed)
                    kept = {name: found[name] for name in ("kl", "select", "heldout")}
                    rows.append({**common, "ratio": ratio, "steps": STEPS[students], **kept})
                RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    Console().print(table_of(rows))


if __name__ == "__main__":
    main()

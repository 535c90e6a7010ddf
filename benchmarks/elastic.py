"""One training for all trials beside a training for each, at equal seconds.

MiniLM-L6 is fine-tuned once a task. `alone`: `FisherSearch`, a training of its own for each ratio.
`elastic`: `ElasticSearch`, one training that takes the seconds of so many lone trials (the mean
over the ratios), then a cut for each ratio. Both distil logits and hidden states, on the same rows,
in the same process, in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.elastic --task cola --glue FOLDER --cache FOLDER

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/elastic.json and goes on where it was stopped; prints the means of the rows
there. KL is the mean divergence from the teacher's answers on the selection split, in nats. Seconds
are those of the processor, which a neighbour changes little: of `elastic` those of its training, of
`alone` those of the trial.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.harness import Row, Rows, groups_of, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, measure, workbench
from maskfront import ElasticSearch, FisherSearch, Stage
from objectives.methods.elastic.elastic_search import ELASTIC
from objectives.progress import SilentProgress
from objectives.workbench.workbench import Workbench
from reports.figures.outer_loop import area

RATIOS = (0.5, 0.33, 0.25, 0.17, 0.1)
EPOCHS = {"tweets": 1.0, "sst2": 1.0, "cola": 1.5, "rte": 3.0}
"""Of a lone trial."""
PROBE = 1.0
"""Epochs of the training that says how long one takes."""


def alone(bench: Workbench, ratio: float, epochs: float, seed: int) -> dict[str, Any]:
    """A trial that trains its own student."""
    stage = Stage(name="recover", epochs=epochs, learning_rate=RATE, loss="prediction+hidden")
    method = FisherSearch(target_ratio=ratio, tolerance=0.01, stages=(stage,))
    return measure(bench, method, seed)


def elastic(epochs: float) -> ElasticSearch:
    """The method whose training takes so many epochs; the ranking alone chooses units."""
    return ElasticSearch(search_steps=0, tolerance=0.01, elastic=replace(ELASTIC, epochs=epochs))


def trained(bench: Workbench, method: ElasticSearch, seed: int) -> float:
    """Seconds of the training that all trials share, done afresh."""
    for folder in bench.problem.cache.glob("elastic-*/"):
        shutil.rmtree(folder)
    started = time.process_time()
    list(ElasticSearch.search([method], bench.problem, seed=seed, progress=SilentProgress()))
    return time.process_time() - started


def rows_of(
    bench: Workbench, name: str, seed: int, lone_trials: Iterable[int], known: Sequence[Row]
) -> Iterator[list[Row]]:
    """The rows of a task and a seed that are not known, those of one training together: of lone
    trials first, whose seconds the others get."""
    epochs, common = EPOCHS[name], {"task": name, "seed": seed}
    own = [row for row in known if common.items() <= row.items()]
    trained(bench, elastic(PROBE / 10), seed)  # what is worked out once a launch is nobody's time
    lone = {row["ratio"]: row for row in own if row["arm"] == "alone"}
    for ratio in RATIOS:
        if ratio not in lone:
            found = of(alone(bench, ratio, epochs, seed))
            lone[ratio] = {**common, "arm": "alone", "lone_trials": 1, "ratio": ratio, **found}
            yield [lone[ratio]]
    mean = statistics.fmean(row["seconds"] for row in lone.values())
    done = {row["lone_trials"] for row in own}
    wanted = sorted(set(lone_trials) - done)
    an_epoch = trained(bench, elastic(PROBE), seed) / PROBE if wanted else 0.0
    for number in wanted:
        method = elastic(number * mean / an_epoch)
        seconds = trained(bench, method, seed)
        found = {
            ratio: measure(bench, replace(method, target_ratio=ratio), seed) for ratio in RATIOS
        }
        yield [
            {
                **common,
                "arm": "elastic",
                "lone_trials": number,
                "ratio": ratio,
                **of(of_ratio),
                "seconds": seconds,
                "epochs": method.elastic.epochs,
                "seconds_of_a_trial": of_ratio["processor_seconds"],
            }
            for ratio, of_ratio in found.items()
        ]


def of(found: Row) -> Row:
    """What a row keeps of a trial."""
    return {"seconds": found["processor_seconds"], **kept(found, "kl", "select", "heldout")}


def print_areas(rows: list[Row]) -> None:
    """Means over the seeds of the area under a front, the ratio up to 1 and the metric from 0: of
    the metrics on the selection split, by which the front is chosen, and of those held out."""
    keys = ("task", "arm", "lone_trials", "seed")
    areas = [
        {
            **dict(zip(keys, key, strict=True)),
            **{split: area(chosen(front, split), 0, 1) for split in ("select", "heldout")},
        }
        for key, front in groups_of(rows, keys).items()
    ]
    print_means("areas under the fronts", areas, keys[:3], {"select": ".4f", "heldout": ".4f"})


def chosen(rows: list[Row], split: str) -> list[tuple[float, float]]:
    """The ratios at which the trial to take changes, and what the new one has on a split."""
    front, best = list[tuple[float, float]](), -math.inf
    for row in sorted(rows, key=lambda row: (row["ratio"], -row["select"])):
        if row["select"] > best:
            front.append((row["ratio"], row[split]))
            best = row["select"]
    return front


def main() -> None:
    """Run, or go on, and print the tables."""
    tasks = ("tweets", "sst2", "cola", "rte")
    parser = parser_of(__doc__, tasks=tasks, seeds=(0, 1, 2), cache=True, device=True)
    parser.add_argument("--lone-trials", nargs="+", type=int, default=[6, 12, 24])
    asked = parsed(parser)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    rows = Rows(asked.out / "elastic.json", asked.device)
    for seed in asked.seeds:
        for found in rows_of(bench, asked.task, seed, asked.lone_trials, tuple(rows.rows)):
            rows.add(*found)
    print_means(
        "one training for all trials, at the seconds of so many lone ones",
        rows.rows,
        ("task", "arm", "lone_trials", "ratio"),
        {"kl": ".4f", "select": ".4f", "heldout": ".4f"},
    )
    print_areas(rows.rows)


if __name__ == "__main__":
    main()

"""Searches for operations beside cells picked by hand and cut BERTs, at equal processor seconds.

MiniLM-L6 is fine-tuned on a task once. Each search gets half of the seconds for its super-net (or
its candidates) and its choice, the other half trains the chosen cell from new weights (AdaBERT's
and Auto-Keras', too, which otherwise go on from those of the search). What searches nothing has all
seconds:

    conv5 conv5     `CellSearch` with two convolutions
    random cell     `CellSearch` with one cell drawn at random from the space of Darts
    cut 0.05        `FisherSearch`, the BERT at 5% of its FLOPs

    OMP_NUM_THREADS=1 python -m benchmarks.systems --cache FOLDER [--text] [--seconds 180]
        [--task sst2|cola --glue FOLDER] [--seeds 0 1 2] [--arms darts enas ...]

Without `--glue` the task is that of the quickstart, "tweets"; with `--text` students learn from
text without labels, too. Writes benchmarks/results/systems.json row by row and goes on where it was
stopped. KL is the divergence from the teacher's answers on the selection split, in nats. Seconds
are measured, and come near what was asked: a run of another length is done again with other steps.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, search, workbench, worth
from maskfront import (
    AdaBert,
    AutoBertZero,
    AutoKeras,
    CellSearch,
    Darts,
    Enas,
    Ess,
    EvolvedTransformer,
    FisherSearch,
    IDarts,
    SearchMethod,
    SearchResult,
    SinglePath,
    Stage,
)
from objectives.methods.cells.choosing import CellChoice
from objectives.workbench.workbench import Workbench

BATCH = 32
PROBED = 20.0
"""Steps of the first guess."""
RUNS, NEAR, MOST = 6, 0.15, 4
"""How often steps are set anew at most, until the time is as near as this share of it; and by how
much at most: what a search does once in a while, such as its rewards, bends the line."""
SEARCHES: dict[str, CellChoice] = {
    "darts": Darts(),
    "darts, second order": Darts(order=2),
    "i-darts": IDarts(pairs=2),
    "adabert": AdaBert(flops_weight=1.0),
    "enas": Enas(grad_rescale=1e-2),
    "single path, random": SinglePath(strategy="random"),
    "single path, evolution": SinglePath(),
    "evolved transformer": EvolvedTransformer(candidates=12, every=4, population=4, sample=2),
    "auto-keras": AutoKeras(),
    "autobert-zero": AutoBertZero(),
    "darts, recurrent": Darts(recurrent=True),
    "ess": Ess(),
}
STAGE = Stage(name="recover", epochs=1, learning_rate=6e-4, loss="prediction+hidden")
CUT = FisherSearch(tolerance=0.01, stages=(STAGE,), target_ratio=0.05)


def by_hand(name: str, seed: int) -> SearchMethod:
    """What searches nothing."""
    if name == "cut 0.05":
        return CUT
    if name == "conv5 conv5":
        return CellSearch(operations=("conv5", "conv5"))
    space = Darts().space
    return CellSearch(nodes=space.graph(space.drawn(Random(seed))).nodes)


def with_steps(method: SearchMethod, steps: float, rows: int) -> SearchMethod:
    """So many steps of training, of a search those of its super-net, or of each candidate that it
    trains alone, and hardly any after it."""
    epochs = steps * BATCH / rows
    if isinstance(method, CellChoice):
        return replace(method, search_epochs=epochs, epochs=1e-6)
    if isinstance(method, CellSearch):
        return replace(method, epochs=epochs)
    return replace(CUT, stages=(replace(STAGE, epochs=epochs),))


def in_seconds(
    bench: Workbench, method: SearchMethod, seconds: float, seed: int, first: float
) -> tuple[SearchResult, float, float]:
    """A student with as many steps as take these processor seconds, the seconds that it took, and
    the steps.

    A line through the times of two runs says how many steps: of one step and of the `first` guess,
    then of the last two, until a run comes near.
    """
    rows = len(bench.problem.train)
    with TemporaryDirectory() as cache:  # super-nets of earlier runs would take no time
        problem = replace(bench.problem, cache=Path(cache))

        def ran(steps: float) -> tuple[SearchResult, float]:
            begun = time.process_time()
            found = search(with_steps(method, steps, rows), problem, seed)
            return found, time.process_time() - begun

        ran(1)  # what is made once a launch
        fewer, (_, short) = 1.0, ran(1)
        steps, (found, took) = first, ran(first)
        for _ in range(RUNS):
            if abs(took / seconds - 1) < NEAR or steps == fewer:
                break
            pace = max((took - short) / (steps - fewer), 1e-4)
            wanted = steps + (seconds - took) / pace
            fewer, short, steps = steps, took, min(max(1.0, wanted), MOST * steps)
            found, took = ran(steps)
    return found, took, steps


def row_of(bench: Workbench, name: str, seconds: float, seed: int, known: Row) -> Row:
    """One arm; a row of another seed says with how many steps to begin."""
    spent, searched = 0.0, {}
    if name in SEARCHES:
        first = known.get("search_steps", PROBED)
        found, spent, steps = in_seconds(bench, SEARCHES[name], seconds / 2, seed, first)
        chosen: Any = found.architecture
        searched = {"searched": spent, "search_steps": steps, "genotype": chosen.to_json()}
        last: SearchMethod = CellSearch(
            width=chosen.width, operations=chosen.operations or ("none",), nodes=chosen.nodes
        )
    else:
        last = by_hand(name, seed)
    first = known.get("steps", PROBED)
    found, took, steps = in_seconds(bench, last, seconds - spent, seed, first)
    names = ("kl", "heldout_kl", "select", "heldout", "reached")
    measured = kept(worth(bench, found), *names)
    return {**searched, **measured, "steps": steps, "taken": spent + took}


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True)
    arms = ("conv5 conv5", "random cell", "cut 0.05", *SEARCHES)
    parser.add_argument("--text", action="store_true", help="rows beyond train, without labels")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--arms", nargs="+", choices=arms, default=arms)
    asked = parsed(parser)
    rows = Rows(asked.out / "systems.json")
    bench = workbench(asked.task, asked.glue, asked.cache, all_text=asked.text)
    text = "with text" if asked.text else "labelled"
    for seed in asked.seeds:
        for arm in asked.arms:
            key = {"task": asked.task, "rows": text, "seconds": asked.seconds, "arm": arm}
            known = next((row for row in reversed(rows.rows) if key.items() <= row.items()), {})
            key["seed"] = seed
            if not rows.has(key):
                rows.add({**key, **row_of(bench, arm, asked.seconds, seed, known)})
    print_means(
        "students of the same processor seconds",
        rows.rows,
        ("task", "rows", "seconds", "arm"),
        {
            **{"reached": ".2g", "kl": ".4f", "select": ".4f", "heldout": ".4f"},
            **{"taken": ".0f"},
        },
    )


if __name__ == "__main__":
    main()

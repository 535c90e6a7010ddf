"""Cells of a few operations: by hand, by searches, with noised rows, for several tasks."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Benchmark, Row, print_means
from benchmarks.tasks import (
    TEXT,
    Training,
    epochs_of,
    kept,
    measure,
    search,
    teacher_row,
    workbench,
    worth,
)
from maskfront import (
    AdaBert,
    AutoBertZero,
    AutoKeras,
    Cas,
    CellSearch,
    Darts,
    Enas,
    Ess,
    EvolvedTransformer,
    FisherSearch,
    IDarts,
    Mas,
    SearchMethod,
    SearchResult,
    SinglePath,
    Stage,
)
from objectives.delivery.bench import OfRun
from objectives.delivery.bench import bench as time_models
from objectives.methods.cells.base.choosing import CellChoice
from objectives.methods.cells.cell_search import with_noised
from objectives.progress import SilentProgress
from objectives.workbench.workbench import Workbench

INT8 = "onnxruntime-int8"
# Twice the rate of the other benchmarks: so far down it comes nearer to the teacher.
RECOVER = Stage(name="recover", epochs=1, learning_rate=6e-4, loss="prediction+hidden")


def rows_read(asked: Any) -> str:
    """Return the rows that students learn from, as the results name them."""
    return "with text" if asked.text else "labelled"


class Cells(Training):
    """Below a tenth of the FLOPs, cells or cut BERTs, at equal steps?

    `cut R` is the BERT at a ratio R, `words` a cell without a block, `conv5 ...` one with these.
    Milliseconds are of one thread of onnxruntime, one text as long as the task allows.
    """

    name = "cells"
    flags = TEXT
    grid = {"steps": (1000,)}
    cuts = (0.1, 0.05)
    arms: dict[str, tuple[int, tuple[str, ...]]] = {
        "words": (128, ()),
        "conv5": (128, ("conv5",)),
        "conv5 conv5": (128, ("conv5", "conv5")),
        "conv5 conv5, 64 wide": (64, ("conv5", "conv5")),
        "conv3 conv5 conv7 dilated7": (128, ("conv3", "conv5", "conv7", "dilated7")),
        "conv5 attention": (128, ("conv5", "attention")),
        "max3 gated": (128, ("max3", "gated")),
    }

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key, with the rows that students learn from."""
        return {**key, "rows": rows_read(self.asked)}

    def methods(self, epochs: float) -> dict[str, SearchMethod]:
        """Return all arms."""
        cut = FisherSearch(tolerance=0.01, stages=(replace(RECOVER, epochs=epochs),))
        cells: dict[str, SearchMethod] = {
            name: CellSearch(width=width, operations=operations, epochs=epochs)
            for name, (width, operations) in self.arms.items()
        }
        return {f"cut {ratio}": replace(cut, target_ratio=ratio) for ratio in self.cuts} | cells

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Train all arms, and time them in turn."""
        rows, models = [], {}
        for arm, method in self.methods(epochs_of(key["steps"], bench)).items():
            row = measure(bench, method, key["seed"])
            fields = kept(row, "kl", "select", "heldout", "reached", "bytes")
            rows.append({"arm": arm, "seconds": row["processor_seconds"], **fields})
            # Time does not depend on weights: the timed model is as good as not trained.
            hardly = {"epochs": 1e-6} if isinstance(method, CellSearch) else {"stages": ()}
            models[arm] = search(replace(method, **hardly), bench.problem, key["seed"]).model
        times = milliseconds(bench, models)
        return [{**row, "ms": times[row["arm"]], "ms_unpruned": times["unpruned"]} for row in rows]

    def show(self, rows: list[Row]) -> None:
        """Print means, and how many times as fast as the unpruned model in int8."""
        shown = [
            {
                **row,
                "MB": row["bytes"] / 1e6,
                "ms float32": row["ms"]["onnxruntime"],
                "ms int8": row["ms"][INT8],
                "times int8": row["ms_unpruned"][INT8] / row["ms"][INT8],
            }
            for row in rows
        ]
        means = {"reached": ".2g", "kl": ".4f", "select": ".4f", "heldout": ".4f", "MB": ".1f"}
        means |= {"seconds": ".0f", "ms float32": ".2f", "ms int8": ".2f", "times int8": ".1f"}
        print_means("students of the same steps", shown, ("task", "rows", "arm"), means)


def milliseconds(bench: Workbench, models: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Time each model and the unpruned one, in float32 and int8."""
    with TemporaryDirectory() as scratch:
        folders = {str(Path(scratch) / str(index)): name for index, name in enumerate(models)}
        for folder, name in folders.items():
            models[name].save_pretrained(folder)
        timed = time_models(
            [Path(folder) for folder in folders],
            of_run=OfRun(unpruned=bench.problem.teacher),
            batches=(1,),
            lengths=(bench.problem.seq_len,),
            engines=("onnxruntime", INT8),
            threads=1,
        )
    times: dict[str, dict[str, float]] = {}
    for timing in timed.timings:
        name = folders.get(timing.model, timing.model)
        times.setdefault(name, {})[timing.engine] = round(timing.quartiles[1], 4)
    return times


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


class Systems(Training):
    """Does a search for operations beat cells picked by hand, at equal processor seconds?

    A search has half of the seconds, a training of the chosen cell from new weights the others.
    """

    name = "systems"
    flags = TEXT
    grid = {
        "seconds": (180,),
        "arm": ("conv5 conv5", "random cell", "cut 0.05", *SEARCHES),
    }
    probed = 20.0
    """Steps of the first guess."""
    groups = ("task", "rows", "seconds", "arm")
    means = {"reached": ".2g", "kl": ".4f", "select": ".4f", "heldout": ".4f", "taken": ".0f"}

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key, with the rows that students learn from."""
        return {**key, "rows": rows_read(self.asked)}

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Search for half of the seconds, and train for the rest."""
        arm, seed, seconds = key["arm"], key["seed"], key["seconds"]
        # A row of another seed says with how many steps to begin.
        alike = {name: value for name, value in key.items() if name != "seed"}.items()
        known = next((row for row in reversed(self.measured.rows) if alike <= row.items()), {})
        spent, searched = 0.0, {}
        if arm in SEARCHES:
            first = known.get("search_steps", self.probed)
            result, spent, steps = in_seconds(bench, SEARCHES[arm], seconds / 2, seed, first)
            cell: Any = result.architecture
            searched = {"searched": spent, "search_steps": steps, "genotype": cell.to_json()}
            last: SearchMethod = CellSearch(
                width=cell.width, operations=cell.operations or ("none",), nodes=cell.nodes
            )
        else:
            last = by_hand(arm, seed)
        first = known.get("steps", self.probed)
        result, taken, steps = in_seconds(bench, last, seconds - spent, seed, first)
        fields = ("kl", "heldout_kl", "select", "heldout", "reached")
        measured = kept(worth(bench, result), *fields)
        return [{**searched, **measured, "steps": steps, "taken": spent + taken}]


def by_hand(arm: str, seed: int) -> SearchMethod:
    """Return a method that searches nothing."""
    if arm == "cut 0.05":
        return FisherSearch(tolerance=0.01, stages=(RECOVER,), target_ratio=0.05)
    if arm == "conv5 conv5":
        return CellSearch(operations=("conv5", "conv5"))
    space = Darts().space
    return CellSearch(nodes=space.graph(space.drawn(Random(seed))).nodes)


def with_steps(method: SearchMethod, epochs: float) -> SearchMethod:
    """Set the training of a method, of a search that of its super-net or candidates alone."""
    if isinstance(method, CellChoice):
        return replace(method, search_epochs=epochs, epochs=1e-6)
    if isinstance(method, CellSearch):
        return replace(method, epochs=epochs)
    assert isinstance(method, FisherSearch)
    return replace(method, stages=(replace(RECOVER, epochs=epochs),))


def in_seconds(
    bench: Workbench, method: SearchMethod, seconds: float, seed: int, first: float
) -> tuple[SearchResult, float, float]:
    """Train for about so many processor seconds; return the student, its seconds, its steps.

    A line through the times of the last two runs says how many steps the next one takes.
    """
    with TemporaryDirectory() as cache:  # super-nets of earlier runs would take no time
        problem = replace(bench.problem, cache=Path(cache))

        def ran(steps: float) -> tuple[SearchResult, float]:
            begun = time.process_time()
            result = search(with_steps(method, epochs_of(steps, bench)), problem, seed)
            return result, time.process_time() - begun

        ran(1)  # what is made once a launch
        fewer, (_, short) = 1.0, ran(1)
        steps, (result, taken) = first, ran(first)
        for _ in range(6):
            if abs(taken / seconds - 1) < 0.15 or steps == fewer:
                break
            pace = max((taken - short) / (steps - fewer), 1e-4)
            wanted = steps + (seconds - taken) / pace
            # Four times the steps at most: what a search does once in a while, such as its
            # rewards, bends the line.
            fewer, short, steps = steps, taken, min(max(1.0, wanted), 4 * steps)
            result, taken = ran(steps)
    return result, taken, steps


class Noised(Training):
    """What do copies of train rows, three words in ten drawn again, give cells at equal steps?"""

    name = "noised"
    flags = TEXT
    grid = {"copies": (0, 3), "steps": (4000,)}
    groups = ("task", "rows", "steps", "copies")
    means = {
        **dict.fromkeys(("kl", "heldout_kl", "select", "heldout"), ".4f"),
        "processor_seconds": ".0f",
    }

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key, with the number of train rows."""
        return {**key, "rows": len(bench.problem.train)}

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return a cell of two convolutions."""
        # The teacher's answers to the copies, which a run makes once, are in no row's seconds.
        with_noised(bench.problem, key["copies"], key["seed"], SilentProgress())
        epochs = epochs_of(key["steps"], bench) / (1 + key["copies"])
        return CellSearch(noised=key["copies"], epochs=epochs)


class SeveralTasks(Benchmark[dict[str, Workbench]]):
    """What is one cell worth for several tasks, and what does one set of weights forget?

    Forgotten is the metric right after a task was learnt, less that in the end. `cas, free` is
    without the penalty that keeps what was learnt; `enas` is each task alone.
    """

    name = "several_tasks"
    tasks = ("sst2",)
    seeds = (0,)
    grid = {
        "order": ("sst2 cola", "cola rte", "sst2 cola rte"),
        "arm": ("enas", "mas", "cas", "cas, free"),
        "passes": (2.0,),
        "epochs": (4.0,),
    }
    prepared_by = ("order",)
    groups = ("task", "order", "arm", "passes", "epochs")
    means = {"select": ".4f", "heldout": ".4f", "kl": ".4f", "forgotten": ".4f"}

    def prepare(self, key: Row) -> dict[str, Workbench]:
        """Fine-tune a teacher for each task."""
        asked = self.asked
        return {
            name: workbench(name, asked.glue, asked.cache, device=asked.device)
            for name in key["order"].split()
        }

    def rows(self, key: Row, benches: dict[str, Workbench]) -> list[Row]:
        """Search with so many passes, and train for so many epochs."""
        settings = {"search_epochs": key["passes"], "epochs": key["epochs"], "grad_rescale": 1e-2}
        free = {"sparsity_weight": 0, "orthogonality_weight": 0}
        if key["arm"] == "enas":
            enas = Enas(**settings)
            alone = [self._rows(enas, key["seed"], {name: benches[name]}) for name in benches]
            return [row for rows in alone for row in rows]
        if key["arm"] == "mas":
            return self._rows(Mas(**settings), key["seed"], benches)
        cas = Cas(**settings, **(free if key["arm"] == "cas, free" else {}))
        return self._rows(cas, key["seed"], benches)

    def _rows(self, method: Enas, seed: int, benches: dict[str, Workbench]) -> list[Row]:
        """Run one search; its seconds are those of all its tasks."""
        first, *others = benches.values()
        problem = replace(first.problem, beside=tuple(bench.problem for bench in others))
        started = time.process_time()
        result = search(method, problem, seed)
        seconds = time.process_time() - started
        rows = []
        for name, part in zip(benches, (result, *result.beside), strict=True):
            score = benches[name].score(part.model, part.architecture)
            rows.append(
                {
                    "task": name,
                    **teacher_row(benches[name]),
                    "select": score.metric,
                    "heldout": score.heldout_metric,
                    "kl": score.divergence,
                    "forgotten": part.forgotten or 0.0,
                    "cell": " ".join(part.architecture.blocks),
                    "processor_seconds": seconds,
                }
            )
        return rows

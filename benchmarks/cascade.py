"""One model, a cascade of two, or an ensemble: which is the fastest that still answers as before?

MiniLM-L6 is fine-tuned on a task once. Two cells and two cut BERTs learn from its answers on all
text. They and the unpruned model are judged in one precision at a time, each against the unpruned
model in that precision. Costs are milliseconds of the processor from text to label, one text a
call, one thread, tokenisation included.

    python -m benchmarks.cascade --cache FOLDER [--task sst2|cola|rte --glue FOLDER]
        [--seeds 0 1 2] [--steps 2000] [--threads 1]

Without `--glue` the task is that of the quickstart, "tweets". For each aim the cheapest of each arm
is chosen on the selection split: an agreement with the unpruned model (0.95 to 0.995), or its
metric less half a point or one. `rule` says how: "point" by what the split says, "confident" by the
lower end of the 95% interval. Ensembles are chosen by "point" alone. Where nothing gets there the
unpruned model is taken. Writes benchmarks/results/cascade.json seed by seed and goes on where it
was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.selected_ensemble import ensembles
from benchmarks.tasks import search, workbench
from maskfront import CellSearch, FisherSearch, SearchMethod, Stage
from objectives.combining.cascade import (
    SHARES,
    Cascade,
    CascadePair,
    pairs_of,
)
from objectives.combining.gate import cheapest_agreeing, cheapest_keeping
from objectives.combining.members import GateRows as Judges
from objectives.combining.members import Member, at_least
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import Texts, answers_to, deploy, text_to_label
from objectives.engines.names import Engine
from objectives.workbench.workbench import Workbench

ENGINES: dict[str, Engine] = {"float32": "onnxruntime", "int8": "onnxruntime-int8"}
AGREEMENTS = (0.95, 0.98, 0.99, 0.995)
POINTS = (0.005, 0.01)
"""What may be lost of the metric."""
BATCH = 32
_TIMED = 100
"""Selection texts that are timed."""


def methods(rows: int, steps: int) -> list[SearchMethod]:
    """The students, where train has so many rows; a cut BERT takes half the steps."""
    epochs = steps * BATCH / rows
    stage = Stage(name="recover", epochs=epochs / 2, learning_rate=6e-4, loss="prediction+hidden")
    return [
        *(
            CellSearch(width=128, operations=("conv5",) * blocks, epochs=epochs)
            for blocks in (1, 2)
        ),
        *(
            FisherSearch(tolerance=0.01, stages=(stage,), target_ratio=ratio)
            for ratio in (0.1, 0.25)
        ),
    ]


def members_of(
    bench: Workbench, models: Sequence[Any], engine: Engine, texts: dict[str, Texts]
) -> list[Member]:
    """The students by their places, and the unpruned model."""
    named = [*enumerate(models), (None, bench.problem.teacher)]
    tokenizer, length = bench.tokenizer, bench.select.max_length
    with TemporaryDirectory() as scratch:
        served = []
        for place, model in named:
            folder = Path(scratch) / str(place)
            deploy(folder, model, tokenizer, engine, length)
            served.append(Classifier(folder))
        times = text_to_label(served, texts["select"][:_TIMED]).mean(axis=0)
        return [
            Member(place, float(cost), {role: answers_to(own, of) for role, of in texts.items()})
            for (place, _), own, cost in zip(named, served, times, strict=True)
        ]


def chosen(members: Sequence[Member], judges: Judges) -> Iterator[Row]:
    """Aim, rule, arm, and what was taken."""
    pairs = list(pairs_of(members, judges))
    alone = [
        CascadePair(one, members[-1], judges, "probability", 1.0).at(-np.inf) for one in members
    ]
    every = [pair.at(pair.threshold(share)) for pair in pairs for share in SHARES]
    arms: dict[str, Sequence[Any]] = {
        "single": alone,
        "cascade": every,
        "ensemble": ensembles(members, judges),
    }
    rows = len(judges.labels["select"])
    whole = judges.value("select", judges.original["select"])
    surely = [judges.surely("select", one.logits["select"].argmax(-1), 1.0) for one in members]
    sure_agreement = [float(at_least(round(one.agreement * rows), rows)) for one in alone]
    for aim in AGREEMENTS:
        taken: dict[tuple[str, str], Any] = {
            ("point", arm): cheapest(own, [one.agreement >= aim for one in own])
            for arm, own in arms.items()
        }
        taken["confident", "single"] = cheapest(alone, [share >= aim for share in sure_agreement])
        taken["confident", "cascade"] = cheapest_agreeing(pairs, aim)
        for (rule, arm), one in taken.items():
            yield {"aim": str(aim), "rule": rule, "arm": arm, **row_of(one, alone[-1])}
    for lost in POINTS:
        least = whole - lost
        taken = {
            ("point", arm): cheapest(own, [one.metric >= least for one in own])
            for arm, own in arms.items()
        }
        taken["confident", "single"] = cheapest(alone, [change >= -lost for change in surely])
        taken["confident", "cascade"] = cheapest_keeping(pairs, -lost, kept=1.0)
        for (rule, arm), one in taken.items():
            yield {
                "aim": f"metric-{100 * lost:g}",
                "rule": rule,
                "arm": arm,
                **row_of(one, alone[-1]),
            }


def cheapest(found: Sequence[Any], enough: Sequence[bool]) -> Any:
    """The cheapest of those that are enough; None if none is."""
    passed = [one for one, ok in zip(found, enough, strict=True) if ok]
    return min(passed, key=lambda one: float(one.cost), default=None)


def row_of(found: Any, unpruned: Cascade) -> Row:
    """What was taken, beside the unpruned model; None or dearer than it is the unpruned model."""
    taken = found if found is not None and found.cost < unpruned.cost else unpruned
    heldout_cost = getattr(taken, "heldout_cost", taken.cost)
    members = getattr(taken, "times", None)
    return {
        "of": [taken.small, taken.large] if members is None else list(members),
        "ms": round(heldout_cost, 4),
        "speedup": unpruned.cost / heldout_cost,
        "agreement": taken.agreement,
        "heldout_agreement": taken.heldout_agreement,
        "metric_kept": taken.metric - unpruned.metric,
        "heldout_kept": taken.heldout_metric - unpruned.heldout_metric,
        "deferred": getattr(taken, "heldout_deferred", 0.0),
    }


def of_seed(bench: Workbench, key: Row, steps: int) -> list[Row]:
    """A row for each precision, aim, rule and arm."""
    models = [
        search(method, bench.problem, key["seed"]).model
        for method in methods(len(bench.problem.train), steps)
    ]
    texts: dict[str, Texts] = {
        role: [row[0] if len(row) == 1 else (row[0], row[1]) for row in own.texts]
        for role, own in bench.texts.items()
    }
    rows = []
    for precision, engine in ENGINES.items():
        members = members_of(bench, models, engine, texts)
        unpruned = members[-1].logits
        judges = Judges(
            metric=bench.metric,
            labels={"select": bench.select.labels, "heldout": bench.heldout.labels},
            original={role: logits.argmax(-1) for role, logits in unpruned.items()},
            classes=unpruned["select"].shape[-1],
        )
        own = {**key, "precision": precision, "costs": [round(one.cost, 4) for one in members]}
        rows += [{**own, **row} for row in chosen(members, judges)]
    return rows


def main() -> None:
    """Run, or go on, and print the table."""
    tasks = ("tweets", "sst2", "cola", "rte")
    parser = parser_of(__doc__, tasks=tasks, seeds=(0, 1, 2), cache=True)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parsed(parser)
    rows = Rows(asked.out / "cascade.json")
    more = asked.task in ("tweets", "sst2")  # of the others all rows are labelled ones
    bench = workbench(asked.task, asked.glue, asked.cache, all_text=more)
    for seed in asked.seeds:
        key = {"task": asked.task, "seed": seed, "steps": asked.steps}
        if not rows.has(key):
            rows.add(*of_seed(bench, key, asked.steps))
    print_means(
        "the cheapest of each arm",
        rows.rows,
        ("task", "precision", "aim", "rule", "arm"),
        {
            **{"ms": ".2f", "speedup": ".1f", "agreement": ".3f", "heldout_agreement": ".3f"},
            **{"metric_kept": "+.3f", "heldout_kept": "+.3f", "deferred": ".3f"},
        },
    )


if __name__ == "__main__":
    main()

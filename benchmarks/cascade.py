"""One model, a cascade, or an ensemble: the cheapest for an aim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import epochs_of, search, workbench
from maskfront import CellSearch, FisherSearch, SearchMethod, Stage
from objectives.combining.cascade import SHARES, Cascade, CascadePair, pairs_of
from objectives.combining.gate import cheapest_agreeing, cheapest_keeping
from objectives.combining.members import GateRows as Judges
from objectives.combining.members import Member, at_least, probabilities
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import Texts, answers_to, deploy, text_to_label
from objectives.engines.names import Engine
from objectives.workbench.workbench import Workbench

ENGINES: dict[str, Engine] = {"float32": "onnxruntime", "int8": "onnxruntime-int8"}
AGREEMENTS = (0.95, 0.98, 0.99, 0.995)
POINTS = (0.005, 0.01)
"""Loss of the metric that is allowed."""
_TIMED = 100
"""Selection texts that are timed."""


def methods(epochs: float) -> list[SearchMethod]:
    """Return two cells and two cut BERTs, which take half the steps."""
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
    """Serve the students and the unpruned model; time them from text to label, one at a time."""
    named = [*enumerate(models), (None, bench.problem.teacher)]
    tokenizer, length = bench.tokenizer, bench.select.max_length
    with TemporaryDirectory() as scratch:
        served = []
        for number, model in named:
            folder = Path(scratch) / str(number)
            deploy(folder, model, tokenizer, engine, length)
            served.append(Classifier(folder))
        times = text_to_label(served, texts["select"][:_TIMED]).mean(axis=0)
        return [
            Member(number, float(cost), {role: answers_to(one, of) for role, of in texts.items()})
            for (number, _), one, cost in zip(named, served, times, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The mean of the probabilities of models that all answer."""

    times: Mapping[int | None, int]
    """How often each was chosen, by the number of its trial; None is the unpruned model."""
    cost: float
    """The sum of its models' costs."""
    metric: float
    heldout_metric: float
    agreement: float
    """Share of the selection rows on which it answers as the unpruned model does."""
    heldout_agreement: float


def ensembles(members: Sequence[Member], judges: Judges, steps: int = 10) -> list[Ensemble]:
    """Add, step by step, the member that helps most, of equals the cheapest.

    Greedy selection with replacement (Caruana et al. 2004; auto-sklearn, Feurer et al. 2015).
    """
    # Every other selection row chooses, so that the rest does not flatter.
    shares = {
        role: np.stack([probabilities(member.logits[role]) for member in members])
        for role in ("select", "heldout")
    }
    choosing = judges.judged_by(np.arange(len(judges.labels["select"])) % 2 == 0)
    chosen: list[int] = []
    selected = []
    for _ in range(steps):
        so_far = shares["select"][chosen].sum(0)[::2] if chosen else 0.0

        def key(index: int, so_far: object = so_far) -> tuple[float, float]:
            labels = (so_far + shares["select"][index][::2]).argmax(-1)
            return choosing.value("select", labels), -members[index].cost

        chosen.append(max(range(len(members)), key=key))
        selected.append(_ensemble(members, judges, chosen, shares))
    return selected


def _ensemble(
    members: Sequence[Member],
    judges: Judges,
    chosen: Sequence[int],
    shares: Mapping[str, np.ndarray],
) -> Ensemble:
    labels = {role: share[chosen].sum(0).argmax(-1) for role, share in shares.items()}
    return Ensemble(
        times=Counter(members[index].number for index in chosen),
        cost=sum(members[index].cost for index in set(chosen)),
        metric=judges.value("select", labels["select"]),
        heldout_metric=judges.value("heldout", labels["heldout"]),
        agreement=judges.agreement("select", labels["select"]),
        heldout_agreement=judges.agreement("heldout", labels["heldout"]),
    )


def chosen(members: Sequence[Member], judges: Judges) -> Iterator[Row]:
    """Choose the cheapest of each arm for each aim, by each rule."""
    pairs = list(pairs_of(members, judges))
    alone = [
        CascadePair(one, members[-1], judges, "probability", 1.0).at(-np.inf) for one in members
    ]
    arms: dict[str, Sequence[Any]] = {
        "single": alone,
        "cascade": [pair.at(pair.threshold(share)) for pair in pairs for share in SHARES],
        "ensemble": ensembles(members, judges),
    }
    rows = len(judges.labels["select"])
    unpruned = judges.value("select", judges.original["select"])
    changes = [judges.surely("select", one.logits["select"].argmax(-1), 1.0) for one in members]
    agreements = [float(at_least(round(one.agreement * rows), rows)) for one in alone]

    def rows_for(
        aim: str, measure: str, least: float, sure: Sequence[bool], cascade: Any
    ) -> Iterator[Row]:
        # "point" goes by what the split says, "confident" by the lower end of the 95% interval.
        taken = {
            ("point", arm): cheapest(own, [getattr(one, measure) >= least for one in own])
            for arm, own in arms.items()
        }
        taken["confident", "single"] = cheapest(alone, sure)
        taken["confident", "cascade"] = cascade
        for (rule, arm), one in taken.items():
            yield {"aim": aim, "rule": rule, "arm": arm, **row_of(one, alone[-1])}

    for aim in AGREEMENTS:
        sure = [share >= aim for share in agreements]
        yield from rows_for(str(aim), "agreement", aim, sure, cheapest_agreeing(pairs, aim))
    for lost in POINTS:
        sure = [change >= -lost for change in changes]
        cascade = cheapest_keeping(pairs, -lost, kept=1.0)
        aim_of = f"metric-{100 * lost:g}"
        yield from rows_for(aim_of, "metric", unpruned - lost, sure, cascade)


def cheapest(models: Sequence[Any], enough: Sequence[bool]) -> Any:
    """Return the cheapest of those that are enough; None if none is."""
    passed = [model for model, ok in zip(models, enough, strict=True) if ok]
    return min(passed, key=lambda model: float(model.cost), default=None)


def row_of(cheapest: Any, unpruned: Cascade) -> Row:
    """Compare with the unpruned model, which is taken where nothing cheaper gets there."""
    taken = cheapest if cheapest is not None and cheapest.cost < unpruned.cost else unpruned
    heldout_cost = getattr(taken, "heldout_cost", taken.cost)
    members = getattr(taken, "times", None)
    return {
        "of": [stage.number for stage in taken.stages] if members is None else list(members),
        "ms": round(heldout_cost, 4),
        "speedup": unpruned.cost / heldout_cost,
        "agreement": taken.agreement,
        "heldout_agreement": taken.heldout_agreement,
        "metric_kept": taken.metric - unpruned.metric,
        "heldout_kept": taken.heldout_metric - unpruned.heldout_metric,
        "deferred": getattr(taken, "heldout_deferred", 0.0),
    }


class Cascades(Benchmark[Workbench]):
    """Which is fastest at equal answers: a model, a cascade, or an ensemble?

    An aim is an agreement with the unpruned model in the same precision, or its metric less half a
    point or one. Costs are milliseconds of one thread from text to label, one text a call.
    """

    name = "cascade"
    tasks = ("tweets", "sst2", "cola", "rte")
    grid = {"steps": (2000,)}
    groups = ("task", "precision", "aim", "rule", "arm")
    means = {
        **{"ms": ".2f", "speedup": ".1f", "agreement": ".3f", "heldout_agreement": ".3f"},
        **{"metric_kept": "+.3f", "heldout_kept": "+.3f", "deferred": ".3f"},
    }

    def prepare(self, key: Row) -> Workbench:
        """Fine-tune the teacher; students learn from all text."""
        asked = self.asked
        text = asked.task in ("tweets", "sst2")  # of the others all rows are labelled ones
        return workbench(asked.task, asked.glue, asked.cache, all_text=text, device=asked.device)

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Train the students, and choose in one precision at a time."""
        models = [
            search(method, bench.problem, key["seed"]).model
            for method in methods(epochs_of(key["steps"], bench))
        ]
        texts: dict[str, Texts] = {
            role: [row[0] if len(row) == 1 else (row[0], row[1]) for row in part.texts]
            for role, part in bench.texts.items()
        }
        rows = []
        for precision, engine in ENGINES.items():
            members = members_of(bench, models, engine, texts)
            logits = members[-1].logits
            judges = Judges(
                metric=bench.metric,
                labels={"select": bench.select.labels, "heldout": bench.heldout.labels},
                original={role: answers.argmax(-1) for role, answers in logits.items()},
                classes=logits["select"].shape[-1],
            )
            costs = [round(member.cost, 4) for member in members]
            common = {"precision": precision, "costs": costs}
            rows += [{**common, **row} for row in chosen(members, judges)]
        return rows

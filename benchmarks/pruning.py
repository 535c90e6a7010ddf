"""Cut BERTs: criteria, few rows, one elastic training, text without labels."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Row, groups_of, print_means
from benchmarks.tasks import (
    BATCH,
    RATE,
    Training,
    epochs_of,
    kept,
    measure,
    workbench,
)
from maskfront import (
    ApsT,
    CellSearch,
    CrossDistillation,
    ElasticSearch,
    FisherPruning,
    FisherSearch,
    GroupLasso,
    LowRank,
    MagnitudePruning,
    Sandwich,
    Stage,
    StagedMethod,
)
from objectives.methods.cross_distillation import rises
from objectives.methods.elastic.elastic_search import ELASTIC
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.pruning.importance import scores_per_cost
from objectives.pruning.reconstruction import held
from objectives.pruning.side_by_side import RECONSTRUCTION, side_by_side
from objectives.search_method import SearchMethod
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier
from objectives.workbench.workbench import Workbench
from reports.figures.outer_loop import area

LEARN = Stage(name="learn", epochs=1, learning_rate=RATE, loss="prediction+hidden")


class GenericCompression(Training):
    """What is low rank, group lasso, another criterion or temperature worth, at equal training?

    With 0 epochs nothing is trained.
    """

    name = "generic"
    seeds = (0,)
    arms: dict[str, StagedMethod | LowRank] = {
        "fisher": FisherSearch(),
        "low rank": LowRank(),
        "magnitude": MagnitudePruning(),
        "sensitivity": MagnitudePruning(criterion="sensitivity"),
        "curvature": MagnitudePruning(criterion="curvature"),
        "group lasso": GroupLasso(),
        "kwon": FisherPruning(),
        "cross": CrossDistillation(),
        "cross, 512 rows": CrossDistillation(rows=512),
        "hard": CrossDistillation(prox="hard"),
        "soft": CrossDistillation(prox="soft"),
        "T=2": FisherSearch(),
        "T=4": FisherSearch(),
        "sparse": MagnitudePruning(),
        "sandwich": Sandwich(),
        "three losses": FisherSearch(),
        "aps-t": ApsT(),
    }
    grid = {"ratio": (0.5,), "epochs": (3.0,), "arm": tuple(arms)}
    kept = ("kl", "heldout_kl", "select", "heldout", "reached", "processor_seconds")
    groups = ("task", "ratio", "epochs", "arm")
    means = {
        **{"kl": ".4f", "heldout_kl": ".4f", "select": ".4f"},
        **{"heldout": ".4f", "reached": ".3f", "processor_seconds": ".1f"},
    }

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return the method of an arm."""
        arm, ratio, epochs = key["arm"], key["ratio"], key["epochs"]
        settings: dict[str, Any] = {"target_ratio": ratio}
        learn = replace(LEARN, epochs=epochs or 1)
        match arm:
            case "T=2" | "T=4":
                learn = replace(learn, temperature=float(arm[-1]))
            case "sparse":  # single weights: as many FLOPs as before
                settings = {"target_ratio": 1.0, "sparsity": 1 - ratio}
            case "three losses":  # logits, hidden states and attention scores
                learn = replace(learn, loss="prediction+intermediate")
        stages = (learn,)
        if arm in ("group lasso", "aps-t"):  # the search takes half of the epochs
            half = replace(learn, epochs=learn.epochs / 2)
            stages = (replace(half, name="search", searches=True), half)
        return replace(self.arms[arm], stages=stages if epochs else (), **settings)


class ByFisher(CrossDistillation):
    """`CrossDistillation` with units ranked by Fisher scores, as `FisherSearch` ranks them."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Return how far the answer moves without a unit, per price."""
        return scores_per_cost(problem, self.spaces, "logits")


class ZipLm(CrossDistillation):
    """`CrossDistillation` with layers compared by relative errors of their outputs."""

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """Return the rise of the relative error at a unit's turn, per price."""
        sizes = {"heads": problem.shape.head_dim, "ffn": 1}
        price = problem.budget.cost.of_one_unit()
        scores: dict[str, list[Tensor]] = {space: [] for space in sizes}
        student, batches = problem.student, self._batches(problem, seed)
        for fit in side_by_side(student, student, batches, [RECONSTRUCTION]):
            second = held(fit.second, self.damping)
            rise = rises(fit.weight.double(), second, sizes[fit.space])
            scores[fit.space].append(rise / rise.sum() / price[fit.space])
        return {space: torch.stack(rows) for space, rows in scores.items()}


def few(problem: Problem, per_class: int, seed: int) -> Problem:
    """Return the problem with so many train rows of each class, drawn with the seed."""
    train, generator = problem.train, np.random.default_rng(seed)
    rows = np.concatenate(
        [
            generator.permutation(np.flatnonzero(train.labels == label))[:per_class]
            for label in np.unique(train.labels)
        ]
    )
    some = train.at(rows)
    logits = problem.teacher_logits[torch.from_numpy(rows)]
    return replace(problem, train=some, alpha=some, teacher_logits=logits, alpha_logits=logits)


class FewRows(Training):
    """What can pruning do with 16 to 256 rows a class, of which nothing else is read?

    With 0 rows a class all train rows are there. Steps are those of a distillation afterwards.
    """

    name = "few_rows"
    seeds = (0,)
    plain = {"mixes": "inputs", "alpha": 1.0, "beta": 1.0}
    arms: dict[str, StagedMethod] = {
        "plain": FisherSearch(),  # the weights that stay are as they were
        "kwon": FisherPruning(),
        "ziplm": ZipLm(**plain),  # type: ignore[arg-type]
        # Weights are solved for: on the model's own path, with losses on both paths, or with
        # inputs of both paths mixed.
        "fisher, plain": ByFisher(**plain),  # type: ignore[arg-type]
        "fisher, CD": ByFisher(mixes="losses"),
        "fisher, SCD": ByFisher(mixes="inputs", alpha=0.75, beta=0.75),
        "surgeon, plain": CrossDistillation(**plain),  # type: ignore[arg-type]
        "surgeon, CD": CrossDistillation(mixes="losses"),
        "surgeon, SCD": CrossDistillation(mixes="inputs", alpha=0.75, beta=0.75),
    }
    grid = {
        "rows_per_class": (16, 64, 256),
        "ratio": (0.75, 0.5),
        "arm": tuple(arms),
        "steps": (0,),
    }
    kept = GenericCompression.kept
    groups = ("task", "rows_per_class", "ratio", "steps", "arm")
    means = {"kl": ".4f", "select": ".4f", "heldout": ".4f", "processor_seconds": ".0f"}

    def problem(self, key: Row, bench: Workbench) -> Problem:
        """Return the problem with few rows."""
        # A problem of its own: what is worked out once a launch is in the seconds of each row.
        if number := key["rows_per_class"]:
            return few(bench.problem, number, key["seed"])
        return replace(bench.problem)

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return the method of an arm, with so many steps of distillation."""
        rows = len(self.problem(key, bench).train)
        learn = replace(LEARN, epochs=key["steps"] * BATCH / rows or 1)
        return replace(
            self.arms[key["arm"]],
            target_ratio=key["ratio"],
            tolerance=0.01,
            batch_size=BATCH,
            stages=(learn,) if key["steps"] else (),
        )


def elastic(epochs: float) -> ElasticSearch:
    """Return the method whose training takes so many epochs; the ranking alone chooses units."""
    return ElasticSearch(search_steps=0, tolerance=0.01, elastic=replace(ELASTIC, epochs=epochs))


def trained(bench: Workbench, method: ElasticSearch, seed: int) -> float:
    """Train the student that all trials share afresh; return the seconds."""
    for folder in bench.problem.cache.glob("elastic-*/"):
        shutil.rmtree(folder)
    started = time.process_time()
    list(ElasticSearch.search([method], bench.problem, seed=seed, progress=SilentProgress()))
    return time.process_time() - started


class Elastic(Training):
    """Does one training for all trials beat a training each, at equal seconds?

    `--lone-trials 1` trains `FisherSearch` for each ratio; N > 1 trains one elastic student for
    the seconds of N such trials, which must have been measured, and cuts it at each ratio.
    """

    name = "elastic"
    tasks = ("tweets", "sst2", "cola", "rte")
    grid = {"lone_trials": (1, 6, 12, 24)}
    ratios = (0.5, 0.33, 0.25, 0.17, 0.1)
    epochs = {"tweets": 1.0, "sst2": 1.0, "cola": 1.5, "rte": 3.0}
    groups = ("task", "arm", "lone_trials", "ratio")
    means = {"kl": ".4f", "select": ".4f", "heldout": ".4f"}

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key, with the arm."""
        return {**key, "arm": "alone" if key["lone_trials"] == 1 else "elastic"}

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Train, and cut at each ratio."""
        seed, number = key["seed"], key["lone_trials"]
        trained(bench, elastic(0.1), seed)  # what is made once a launch is nobody's time
        if number == 1:
            stage = replace(LEARN, name="recover", epochs=self.epochs[key["task"]])
            alone = FisherSearch(tolerance=0.01, stages=(stage,))
            return [self._row(bench, alone, ratio, seed) for ratio in self.ratios]
        lone = {"task": key["task"], "seed": seed, "arm": "alone"}
        seconds = fmean(row["seconds"] for row in self.measured.rows if lone.items() <= row.items())
        method = elastic(number * seconds / trained(bench, elastic(1.0), seed))
        taken = trained(bench, method, seed)
        rows = [self._row(bench, method, ratio, seed) for ratio in self.ratios]
        return [
            {
                **row,
                "seconds": taken,
                "epochs": method.elastic.epochs,
                "seconds_of_a_trial": row["seconds"],
            }
            for row in rows
        ]

    def _row(self, bench: Workbench, method: StagedMethod, ratio: float, seed: int) -> Row:
        row = measure(bench, replace(method, target_ratio=ratio), seed)
        seconds = row["processor_seconds"]
        return {"ratio": ratio, "seconds": seconds, **kept(row, "kl", "select", "heldout")}

    def show(self, rows: list[Row]) -> None:
        """Print the means, and the areas under the fronts: ratio up to 1, metric from 0."""
        super().show(rows)
        keys, splits = ("task", "arm", "lone_trials", "seed"), ("select", "heldout")
        areas = [
            {
                **dict(zip(keys, key, strict=True)),
                **{split: area(front_of(group, split), 0, 1) for split in splits},
            }
            for key, group in groups_of(rows, keys).items()
        ]
        print_means("areas under the fronts", areas, keys[:3], dict.fromkeys(splits, ".4f"))


def front_of(rows: list[Row], split: str) -> list[tuple[float, float]]:
    """Return the models to take as the ratio grows, by the selection split: ratio and metric."""
    front, best = list[tuple[float, float]](), -math.inf
    for row in sorted(rows, key=lambda row: (row["ratio"], -row["select"])):
        if row["select"] > best:
            front.append((row["ratio"], row[split]))
            best = row["select"]
    return front


class AsTrained(ElasticSearch):
    """`ElasticSearch` that cuts the weights as they were trained, whatever the size."""

    def _weights_for(
        self, problem: Problem, trained: Classifier, units: BertArchitecture
    ) -> Classifier:
        return trained


class Interpolation(Training):
    """What are weights on the way back to the teacher's worth to large cuts?

    `interpolated` is what a trial of `ElasticSearch` does.
    """

    name = "interpolation"
    grid = {
        "ratio": (0.98, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3),
        "arm": ("as trained", "interpolated"),
        "epochs": (7.0,),
    }
    kept = ("kl", "heldout_kl", "agreement", "heldout_agreement", "heldout")
    groups = ("task", "epochs", "ratio", "arm")
    means = dict.fromkeys(kept, ".4f")

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return a cut from the one elastic student."""
        kind = AsTrained if key["arm"] == "as trained" else ElasticSearch
        return kind(
            elastic=replace(ELASTIC, epochs=key["epochs"]),
            tolerance=0.01,
            target_ratio=key["ratio"],
        )


class Unlabelled(Training):
    """What does text without labels add, at equal steps?

    The teacher learns from labelled rows alone. `elastic` trains one student for all ratios,
    `alone` one for each; `cell` is a cell of two convolutions.
    """

    name = "unlabelled"
    tasks = Elastic.tasks
    steps = {"elastic": 417, "alone": 375, "cell": 1500}
    grid = {
        "arm": ("labelled", "with text"),
        "students": tuple(steps),
        "ratio": (0.5, 0.25, 0.1),
        "times": (1,),
    }
    prepared_by = ("arm",)
    kept = ("kl", "heldout_kl", "select", "heldout", "agreement", "heldout_agreement")
    groups = ("task", "students", "steps", "arm", "ratio")
    means = dict.fromkeys(kept, ".4f")

    def prepare(self, key: Row) -> Workbench:
        """Prepare the task, with text in one of the arms."""
        asked, text = self.asked, key["arm"] == "with text"
        return workbench(asked.task, asked.glue, asked.cache, all_text=text, device=asked.device)

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key: steps are so many times the usual, and cells have no ratio."""
        steps = self.steps[key["students"]] * key["times"]
        left_out = {"times"} | ({"ratio"} if key["students"] == "cell" else set())
        fields = {name: value for name, value in key.items() if name not in left_out}
        return {**fields, "rows": len(bench.problem.train), "steps": steps}

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return students that take so many steps."""
        epochs = epochs_of(key["steps"], bench)
        if key["students"] == "cell":
            return CellSearch(epochs=epochs)
        if key["students"] == "elastic":
            return replace(elastic(epochs * ElasticSearch().sizes), target_ratio=key["ratio"])
        stage = replace(LEARN, name="recover", epochs=epochs)
        return FisherSearch(tolerance=0.01, stages=(stage,), target_ratio=key["ratio"])

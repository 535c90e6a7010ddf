"""Every method beside every cost, precision, task and device: what a study can be made of.

The combinations are generated from the methods themselves, so that a new file in
`objectives/methods` joins the matrix by existing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib import import_module
from inspect import isabstract, isclass
from itertools import product
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Literal, get_args

import pytest
import torch
from datasets import Dataset
from optuna.distributions import FloatDistribution
from rich.console import Console

from objectives import methods
from objectives.delivery.exported import load_model
from objectives.errors import UserError
from objectives.measures.cost import CostName
from objectives.methods.cells.base.choosing import CellChoice
from objectives.methods.polish import Polish
from objectives.metric import Metric
from objectives.search_method import SearchMethod
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.inputs import Beside
from objectives.workbench.teacher import Teacher
from orchestrator.command.launching import launch
from orchestrator.command.polishing import polish
from orchestrator.command.run import Run
from orchestrator.study import Study
from tests.conftest import graded_rows, planted_rows

Precision = Literal["float", "bits", "vocabulary"]
Answers = Literal["labels", "agreement", "regression", "several"]
METRICS: Mapping[Answers, Metric] = {
    "labels": "accuracy",
    "agreement": "agreement",
    "regression": "pearson_spearman",
    "several": "micro_f1",
}
Device = Literal["cpu", "cuda"]

QUIET = Console(quiet=True)
FULL_BITS = 32
CHANGES: Mapping[Precision, Mapping[str, Any]] = {
    "float": {},
    "bits": {"weight_bits": 4, "input_bits": 8, "embedding_bits": 8},
    "vocabulary": {"vocabulary": 0.8},
}
"""What each precision changes in the settings of a method."""
QUICK: Mapping[str, Any] = {
    **{"batch_size": 16, "epochs": 0.2, "rows": 32, "steps": 2, "width": 16, "smallest": 0.2},
    **{"search_epochs": 0.2, "rewards": 2, "candidates": 2, "most_cells": 2},
    "tolerance": 0.3,  # the tiny model has few units, and those of "bytes" are coarse
}
"""Settings that make a method quick, where it has them."""


@dataclass(frozen=True)
class Combination:
    """One study of the matrix."""

    method: str
    """Name of its class."""
    cost: CostName
    precision: Precision
    answers: Answers
    device: Device

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


def _classes() -> dict[str, type[SearchMethod]]:
    found = {}
    for module in walk_packages(methods.__path__, "objectives.methods."):
        for value in vars(import_module(module.name)).values():
            own = getattr(value, "__module__", None) == module.name
            if own and isclass(value) and issubclass(value, SearchMethod) and not isabstract(value):
                found[value.__name__] = value
    return found


METHODS = _classes()


def shares_a_base(method: str) -> bool:
    """Whether all that a study sees of this method is in its base class."""
    return issubclass(METHODS[method], CellChoice)


def combinations() -> Iterator[Combination]:
    """All of them, methods in the order of their names."""
    for name in METHODS:
        for rest in product(*map(get_args, (CostName, Precision, Answers, Device))):
            if rest[1] in precisions(METHODS[name]):
                yield Combination(name, *rest)


def precisions(method: type[SearchMethod]) -> list[Precision]:
    """Those that a method has settings for; one of few bits by default has no "float"."""
    own = {field.name: field.default for field in fields(method)}
    if method is Polish or "weight_bits" not in own:  # a model is polished as it is
        return ["float"]
    first: Precision = "float" if own["weight_bits"] == FULL_BITS else "bits"
    return list(dict.fromkeys([first, "bits", "vocabulary"]))


def diagonal(device: Device) -> list[Combination]:
    """One of each method, such that each cost, precision and kind of answers has its turn. The
    stand-in for a GPU has no milliseconds to count."""
    free = {"latency"} if device == "cuda" else set()
    chosen = []
    for number, name in enumerate(METHODS):
        own = [c for c in combinations() if c.method == name and c.device == device]
        claimed = [c for c in own if c.cost in METHODS[name].costs - free]
        chosen.append(claimed[number * 7 % len(claimed)])
    return chosen


def pairs() -> list[Combination]:
    """Those in which each method meets every pair of cost, precision and answers, on the CPU."""
    return _covering(
        "cpu",
        lambda one: {
            f"{one.cost}, {one.precision}",
            f"{one.cost}, {one.answers}",
            f"{one.precision}, {one.answers}",
        },
    )


def values() -> list[Combination]:
    """Fewer: each method meets every cost, precision and kind of answers, on the CPU."""
    return _covering("cpu", lambda one: {one.cost, one.precision, one.answers})


def _covering(device: Device, met: Callable[[Combination], set[str]]) -> list[Combination]:
    """Of each method combinations that meet all there is to meet, each taken for what it adds.

    Those of different methods begin at different costs.
    """
    chosen = []
    for number, name in enumerate(METHODS):
        own = [c for c in combinations() if c.method == name and c.device == device]
        first = number * len(own) // len(METHODS)
        own = own[first:] + own[:first]
        if device == "cuda":
            own = [one for one in own if one.cost in METHODS[name].costs]
        wanted = {what for one in own for what in met(one)}
        while wanted:
            best = max(own, key=lambda one: len(wanted & met(one)))
            wanted -= met(best)
            chosen.append(best)
    return chosen


def quick(method: type[SearchMethod], precision: Precision) -> SearchMethod:
    """The method with little training, in this precision."""
    defaults = {field.name: field.default for field in fields(method)}
    own: dict[str, Any] = {name: value for name, value in QUICK.items() if name in defaults}
    for name, value in defaults.items():
        if isinstance(value, Stage):
            own[name] = replace(value, epochs=QUICK["epochs"])
        elif isinstance(value, tuple) and value and all(map(is_dataclass, value)):
            own[name] = tuple(replace(stage, epochs=QUICK["epochs"]) for stage in value)
    if defaults.get("weight_bits", FULL_BITS) == FULL_BITS or precision != "bits":
        own |= CHANGES[precision]
    return method(**own)


@dataclass(frozen=True)
class Models:
    """The folders of the checkpoints that teachers are made of."""

    pretrained: str
    classifier: str
    """Fine-tuned on the tiny task."""


def several_rows() -> Dataset:
    """The tiny task's rows; beside its label a long text has another."""
    return planted_rows().map(
        lambda row: {"label": [row["label"], *["long"] * (len(row["text"]) > 40)]},
    )


def study(one: Combination, models: Models) -> Study:
    """Two trials of it. Raises UserError where the method does not claim the cost."""
    polishes = METHODS[one.method] is Polish
    method = quick(METHODS["RandomPruning" if polishes else one.method], one.precision)
    rows = {"regression": graded_rows, "several": several_rows}.get(one.answers, planted_rows)
    knob = "target_ratio" if hasattr(method, "target_ratio") else "learning_rate"
    knobs = (0.9, 0.6) if knob == "target_ratio" else (1e-3, 3e-3)
    task = Task(
        name=one.answers,
        data=rows,
        metric=METRICS[one.answers],
        multi_label=one.answers == "several",
        max_length=16,
        **{"train": 96, "alpha": 32, "select": 48, "heldout": 48},
    )
    classifier = Teacher(checkpoint=models.classifier)
    beside = Beside(
        task=replace(task, name="second", data=planted_rows, metric="accuracy", multi_label=False),
        teacher=classifier,
    )
    return Study(
        name="matrix",
        task=task,
        teacher=Teacher(checkpoint=models.pretrained, epochs=2, learning_rate=1e-3)
        if one.answers in ("regression", "several")
        else classifier,
        beside=(beside,) if method.learns_beside else (),
        method=method,
        space={knob: FloatDistribution(min(knobs), max(knobs))},
        first=tuple({knob: value} for value in knobs),
        cost=one.cost,
        trials=2,
        population=2,
    )


def run_whole(one: Combination, models: Models, folder: Path) -> None:
    """Launch the study, export a model of its front, read it back; or see it refused.

    `folder` may hold the cache of other combinations, which is taken and added to.

    Raises AssertionError where that is not how it goes.
    """
    if one.cost not in METHODS[one.method].costs:
        with pytest.raises(UserError, match=rf"cost is '{one.cost}'") as refused:
            study(one, models)
        assert "\n" not in str(refused.value)
        return
    defined = study(one, models)
    out = folder / one.name
    (out / "cache").mkdir(parents=True)
    shared = folder / "cache"
    shared.mkdir(exist_ok=True)
    shutil.copytree(shared, out / "cache", dirs_exist_ok=True)
    run = launch(defined, out=out, device=one.device, report=False, console=QUIET)
    if METHODS[one.method] is Polish:
        own = {"trials": [0, 1], "epochs": 0.2, "device": one.device}
        run = polish(run, defined, **own, console=QUIET)
    shutil.copytree(out / "cache", shared, dirs_exist_ok=True)
    _check(run, one)


def _check(run: Run, one: Combination) -> None:
    assert len(run.finished) == 2, [
        trial.failure for trial in run.trials if trial not in run.finished
    ]
    assert run.front, [trial.result for trial in run.finished]
    best = run.front[0]
    assert best.result.unit.startswith({"latency": "ms"}.get(one.cost, one.cost))
    exported = run.export(run.folder / "exported", trial=best.number)
    own = load_model(run.folder / "trials" / f"{best.number:05d}" / "model")
    again = load_model(exported.folder)
    tokens = torch.arange(8).view(1, 8)
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, own(tokens).logits)

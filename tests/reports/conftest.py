"""Runs made by hand: what the reports read, without a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from orchestrator.records import RunRecord, TrialRecord, TrialResult, UnprunedResult

MakeTrial: TypeAlias = Callable[..., TrialRecord]
MakeRun: TypeAlias = Callable[..., RunRecord]

FLOPS = 1_000_000


def _trial(number: int, flops: int, metric: float, *, target: float | None = None) -> TrialRecord:
    """A finished trial, in the middle of its budget unless `target` says otherwise."""
    return TrialRecord(
        number=number,
        state="finished",
        knobs={"flops_weight": 1 / 3, "mode": "soft"},
        result=TrialResult(
            metric=metric,
            heldout_metric=metric - 0.01,
            cost=flops,
            cost_full=FLOPS,
            unit="flops@16",
            flops=flops,
            flops_full=FLOPS,
            flops_unit="flops@16",
            params=flops // 10,
            target_ratio=flops / FLOPS if target is None else target,
            tolerance=0.05,
            heads_per_layer=(1, 4),
            ffn_per_layer=(0, 16),
            model=f"trials/{number:05d}/model",
            seconds=12.3,
        ),
        failure=None,
    )


def _run(trials: Sequence[TrialRecord] = (), **changes: Any) -> RunRecord:
    """A run of a teacher with two layers, 4 heads and 32 FFN neurons in each, accuracy 0.9."""
    run = RunRecord(
        name="tiny",
        folder=Path("runs/tiny"),
        metric_name="accuracy",
        unpruned=UnprunedResult(
            metric=0.9,
            heldout_metric=0.88,
            cost=FLOPS,
            cost_full=FLOPS,
            unit="flops@16",
            flops=FLOPS,
            flops_full=FLOPS,
            flops_unit="flops@16",
            params=100_000,
            heads_per_layer=(4, 4),
            ffn_per_layer=(32, 32),
        ),
        trials=tuple(trials),
        definition={"seed": "7", "task.metric": "accuracy"},
        versions={"torch": "2.13.0", "device": "cpu"},
        sources={"task": "tweets", "data": "tweets()", "teacher": "hub/bert"},
    )
    return replace(run, **changes)


@pytest.fixture(scope="session")
def make_trial() -> MakeTrial:
    """Makes a finished trial from its number, cost in FLOPs (of 1,000,000) and metric."""
    return _trial


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Makes a run from its trials."""
    return _run


@pytest.fixture
def timed_run() -> RunRecord:
    """A run that counts milliseconds, with two models on its front."""
    unit = {"cost_full": 12.5, "unit": "ms@cpu-2threads-b1-s16"}
    run = _run([_trial(0, 700_000, 0.89), _trial(1, 400_000, 0.81)])
    trials = [
        replace(one, result=replace(one.result, **unit, cost=one.result.ratio * 12.5))
        for one in run.trials
        if one.result is not None
    ]
    unpruned = replace(run.unpruned, **unit, cost=12.5)
    return replace(run, trials=tuple(trials), unpruned=unpruned)


@pytest.fixture
def mixed_run() -> RunRecord:
    """Two models on the front, one dominated, one outside its budget, one in each other state."""
    unfinished = [
        TrialRecord(number=4, state="failed", knobs={}, result=None, failure="all units closed"),
        TrialRecord(number=5, state="stopped", knobs={}, result=None, failure=None),
        TrialRecord(number=6, state="running", knobs={}, result=None, failure=None),
    ]
    return _run(
        [
            _trial(0, 700_000, 0.89),
            _trial(1, 400_000, 0.81),
            _trial(2, 500_000, 0.80),
            _trial(3, 300_000, 0.95, target=0.2),
            *unfinished,
        ]
    )

"""The front of records made by hand, and its document."""

from __future__ import annotations

from pathlib import Path

from orchestrator.records import (
    RunRecord,
    TrialRecord,
    TrialResult,
    UnprunedResult,
    front_document,
    pareto_front,
)


def trial(number: int, metric: float, flops: int, *, target: float | None = None) -> TrialRecord:
    result = TrialResult(
        metric=metric,
        heldout_metric=metric - 0.01,
        flops=flops,
        flops_full=1000,
        unit="flops@16",
        params=10 * flops,
        target_ratio=flops / 1000 if target is None else target,
        tolerance=0.05,
        heads_per_layer=(1,),
        ffn_per_layer=(2,),
        model=f"trials/{number:05d}/model",
        seconds=1.0,
    )
    return TrialRecord(
        number=number, state="finished", knobs={"target_ratio": 0.5}, result=result, failure=None
    )


def test_the_front_is_sorted_and_holds_no_dominated_trial() -> None:
    trials = [trial(0, 0.8, 900), trial(1, 0.7, 300), trial(2, 0.6, 500), trial(3, 0.75, 400)]
    assert [t.number for t in pareto_front(trials)] == [1, 3, 0]


def test_of_equal_trials_the_first_stays() -> None:
    assert [t.number for t in pareto_front([trial(4, 0.7, 300), trial(2, 0.7, 300)])] == [2]


def test_a_trial_outside_its_budget_is_not_on_the_front() -> None:
    assert pareto_front([trial(0, 0.9, 500, target=0.3)]) == []


def test_a_trial_on_the_edge_of_its_band_is_feasible() -> None:
    edge = trial(0, 0.9, 525, target=0.5)
    assert edge.result is not None
    assert abs(edge.result.violation) < 1e-12


def test_the_document_has_what_a_script_needs() -> None:
    run = RunRecord(
        name="hand",
        folder=Path("runs/hand"),
        metric_name="accuracy",
        unpruned=UnprunedResult(
            metric=0.9,
            heldout_metric=0.88,
            flops=1000,
            flops_full=1000,
            params=5000,
            unit="flops@16",
            heads_per_layer=(2,),
            ffn_per_layer=(4,),
        ),
        trials=(trial(0, 0.8, 500),),
        definition={},
        versions={},
    )
    document = front_document(run)
    assert document["unpruned"] == {
        "metric": 0.9,
        "heldout_metric": 0.88,
        "flops": 1000,
        "flops_full": 1000,
        "ratio": 1.0,
        "params": 5000,
        "unit": "flops@16",
    }
    (point,) = document["front"]
    assert point["ratio"] == 0.5
    assert set(point) == {
        "trial",
        "metric",
        "heldout_metric",
        "flops",
        "flops_full",
        "ratio",
        "unit",
        "params",
        "target_ratio",
        "knobs",
        "model",
    }

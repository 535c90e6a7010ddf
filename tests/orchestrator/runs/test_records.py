"""The front of records made by hand, and its document."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.errors import RunError
from orchestrator.runs.records import (
    BEGAN,
    LAST_SEEN,
    RESULT,
    RETRY_OF,
    WORKER,
    FinishedTrial,
    RunRecord,
    TrialRecord,
    foreign_trials,
    front_document,
    own_study,
    pareto_front,
    trial_record,
)
from orchestrator.runs.results import TrialResult, UnprunedResult, ratio_text, size_text
from tests.measured import budgeted, measured


def trial(number: int, metric: float, flops: int, *, target: float | None = None) -> FinishedTrial:
    result = TrialResult(**budgeted(metric, flops, 1000, target))
    return FinishedTrial(
        number=number, state="finished", knobs={"target_ratio": 0.5}, result=result, failure=None
    )


def test_of_equal_trials_the_first_stays() -> None:
    assert [t.number for t in pareto_front([trial(4, 0.7, 300), trial(2, 0.7, 300)])] == [2]


def test_the_front_of_divergences_is_another_than_that_of_the_metric() -> None:
    """A metric may be lucky: of two students the one nearer to the teacher has the lower one."""
    lucky, near, dear = trial(0, 0.8, 300), trial(1, 0.7, 300), trial(2, 0.75, 400)
    far = {0: 0.3, 1: 0.1, 2: 0.05}
    compared = [
        replace(one, result=replace(one.result, objective="divergence", divergence=far[one.number]))
        for one in (lucky, near, dear)
    ]
    assert [one.number for one in pareto_front([lucky, near, dear])] == [0]
    assert [one.number for one in pareto_front(compared)] == [1, 2]
    assert [one.result.worth for one in compared] == [-0.3, -0.1, -0.05]
    assert pareto_front([compared[1], replace(compared[1], number=5)]) == [compared[1]]


def test_a_trial_on_the_edge_of_its_band_is_feasible() -> None:
    edge = trial(0, 0.9, 525, target=0.5)
    assert edge.result is not None
    assert abs(edge.result.violation) < 1e-12


def test_a_count_stays_whole_and_a_time_is_rounded_for_people() -> None:
    assert size_text(22_348_434_432) == "22,348,434,432"
    assert size_text(1234.5678) == "1,234.568"


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "1.000"), (0.01, "0.010"), (0.0092, "0.0092"), (6.37e-5, "6.4e-05")]
)
def test_a_ratio_below_a_hundredth_keeps_two_digits(ratio: float, text: str) -> None:
    assert ratio_text(ratio) == text


@pytest.mark.parametrize("unit", ["params", "ms@cpu-2threads-b1-s16"])
def test_a_front_is_of_the_cost_whatever_the_flops(unit: str) -> None:
    """Of two models the one with more FLOPs is the cheaper: it dominates."""
    cheap, dear = trial(0, 0.8, 500), trial(1, 0.7, 300)
    assert cheap.result is not None
    assert dear.result is not None
    priced = [
        replace(
            one,
            result=replace(
                one.result, cost=cost, cost_full=8.0, unit=unit, budget_unit=unit, **asked
            ),
        )
        for one, cost in ((cheap, 2.0), (dear, 4.0))
        for asked in [{"target_ratio": cost / 8}]
    ]
    assert [one.number for one in pareto_front([cheap, dear])] == [1, 0]
    assert [one.number for one in pareto_front(priced)] == [0]
    assert priced[0].result.ratio == 0.25
    half = replace(priced[0].result, target_ratio=0.125)
    assert half.violation == pytest.approx(0.125 - 0.05 * 0.125)


def test_the_document_has_what_a_script_needs() -> None:
    run = RunRecord(
        name="hand",
        folder=Path("runs/hand"),
        metric_name="accuracy",
        unpruned=UnprunedResult(**measured(0.9, 1000, 1000), student_is_new=False),
        trials=(trial(0, 0.8, 500),),
        definition={},
        versions={},
        sources={},
        notes=(),
    )
    document = front_document(run)
    shown = {**measured(0.9, 1000, 1000), "ratio": 1.0}
    for inner in ("interval", "heldout_interval", "widths"):
        del shown[inner]
    assert document["unpruned"] == shown
    (point,) = document["front"]
    assert point["ratio"] == 0.5
    assert set(point) == {"trial", *shown, "target_ratio", "knobs", "model"}


def test_of_a_result_of_another_version_what_is_known_is_read() -> None:
    known = asdict(trial(0, 0.8, 500).result)

    def read(result: dict[str, object]) -> TrialResult | None:
        attributes = {RESULT: result}
        return trial_record(
            optuna.trial.create_trial(
                values=[0.8, 500], user_attrs=attributes, params={}, distributions={}
            )
        ).result

    assert read({**known, "perplexity": 3.0}) == read(known) == trial(0, 0.8, 500).result
    lacks = {name: value for name, value in known.items() if name != "widths"}
    with pytest.raises(RunError, match=r"result has no widths: .*another version of maskfront"):
        read(lacks)


def test_trials_of_other_programs_and_those_that_are_tried_again_are_none() -> None:
    ours, told = {WORKER: "a"}, {WORKER: "a", RESULT: {}}
    rows: list[tuple[TrialState, dict[str, Any]]] = [
        (TrialState.COMPLETE, told),
        (TrialState.COMPLETE, told),  # damaged: the next but one has its hyperparameters
        (TrialState.FAIL, ours),
        (TrialState.WAITING, {RETRY_OF: 1, WORKER: ""}),
        (TrialState.WAITING, {}),  # anybody may ask for one
        (TrialState.RUNNING, ours),
        *((state, {}) for state in TrialState if state is not TrialState.WAITING),
        (TrialState.PRUNED, told),
        (TrialState.COMPLETE, ours),  # enqueued by maskfront, and taken by another program
    ]
    study = optuna.create_study(directions=["maximize", "minimize"])
    for state, attributes in rows:
        values = [0.0, 0.0] if state is TrialState.COMPLETE else None
        study.add_trial(
            optuna.trial.create_trial(state=state, values=values, user_attrs=attributes)
        )
    own = own_study(study.study_name, study._storage)
    assert [trial.number for trial in own.trials] == [0, 2, 3, 4, 5]
    assert [t.number for t in own.get_trials(states=(TrialState.COMPLETE,))] == [0]
    assert foreign_trials(own) == tuple(range(6, len(rows)))


def of_zone(
    hours: int, attributes: dict[str, float], state: TrialState = TrialState.FAIL
) -> TrialRecord:
    """A trial of ten minutes, as a worker so far east writes it."""
    start = datetime(2026, 11, 21, 12 + hours, 0, 0)
    row = optuna.trial.create_trial(state=state, user_attrs=attributes)
    row.datetime_start, row.datetime_complete = start, start + timedelta(minutes=10)
    return trial_record(row)


@pytest.mark.parametrize("hours", [0, 9])
def test_a_trial_ran_when_its_worker_says_whatever_its_time_zone(hours: int) -> None:
    began = 1_795_262_400.0
    row = of_zone(hours, {BEGAN: began})
    assert (row.started, row.ended, row.seconds) == (began, began + 600, 600)
    assert BEGAN not in row.attributes


def test_a_trial_whose_worker_died_ended_when_that_was_heard_last() -> None:
    began = 1_795_262_400.0
    assert of_zone(0, {BEGAN: began, LAST_SEEN: began + 90}).seconds == 90
    assert of_zone(0, {BEGAN: began, LAST_SEEN: began - 5}).seconds == 0
    lived = {BEGAN: began, LAST_SEEN: began + 90}  # and told it before the others could fail it
    assert of_zone(0, lived, TrialState.RUNNING).seconds == 600


def test_a_trial_that_no_worker_began_has_the_times_of_this_zone() -> None:
    row = of_zone(0, {})
    assert row.started == datetime(2026, 11, 21, 12, 0, 0).timestamp()
    assert row.seconds == 600


def test_a_trial_over_which_the_clock_was_set_back_took_no_time_rather_than_less() -> None:
    row = optuna.trial.create_trial(state=TrialState.FAIL, user_attrs={BEGAN: 1000.0})
    row.datetime_start = datetime(2026, 10, 25, 2, 59, 0)
    row.datetime_complete = datetime(2026, 10, 25, 2, 9, 0)
    assert trial_record(row).seconds == 0

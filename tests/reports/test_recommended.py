"""The models to look at first, and how much better the chosen one looks than it is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.combining.cascade import Cascade
from objectives.combining.members import CascadeStage
from objectives.metric import Floats
from orchestrator.runs.answers import JudgedRows
from orchestrator.runs.results import Measured, ratio_text
from reports.figures.cascades import add_cascades
from reports.figures.front import front_figure
from reports.figures.outer_loop import FEWEST, outer_section
from reports.overlay import overlay
from reports.pareto import Paired, pareto_view, percent
from reports.recommended import answer, cheapest_within, knee, optimism, recommendations
from tests.reports.conftest import with_result


def test_each_question_has_a_model_that_stands_there_once(make_run: Any, make_trial: Any) -> None:
    """The unpruned metric is 0.9: 1% below it is 0.891, 3% below it 0.873."""
    rows = [(100_000, 0.5), (300_000, 0.86), (400_000, 0.875), (700_000, 0.89), (900_000, 0.895)]
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    found = [(row.reasons, row.trial.number) for row in recommendations(pareto_view(run))]
    assert found == [
        (("recommended", "cheapest within 3%"), 2),
        (("cheapest within 1%",), 4),
        (("knee",), 1),
    ]
    good = make_run([make_trial(0, 300_000, 0.9)])
    assert [row.reasons for row in recommendations(pareto_view(good))] == [
        ("recommended", "cheapest within 1%", "cheapest within 3%")
    ]
    assert recommendations(pareto_view(make_run())) == []


@pytest.mark.parametrize("unpruned", [0.9, 1.0, 0.6, 0.7])
def test_a_loss_of_exactly_one_percent_is_within_it_everywhere(
    make_run: Any, make_trial: Any, unpruned: float
) -> None:
    rows = [(300_000, round(0.99 * unpruned, 6)), (900_000, unpruned)]
    run = make_run([make_trial(n, *row) for n, row in enumerate(rows)])
    view = pareto_view(replace(run, unpruned=replace(run.unpruned, metric=unpruned)))
    assert answer(view).startswith("Take trial 0")
    first, *_ = recommendations(view)
    assert first.trial.number == 0
    assert first.reasons[:2] == ("recommended", "cheapest within 1%")


def test_damaged_trials_are_called_that(make_run: Any, make_trial: Any) -> None:
    whole, damaged = make_trial(0, 300_000, 0.9), make_trial(1, 400_000, 0.9)
    damaged = replace(damaged, damage=("model.safetensors is cut short",))
    view = pareto_view(make_run([damaged]))
    assert answer(view) == (
        "All trials that could be on the front are damaged; launch again to repeat them."
    )
    missed = with_result(whole, target_ratio=0.1)
    assert "1 finished outside it" in answer(pareto_view(make_run([damaged, missed])))


@pytest.mark.parametrize(
    ("share", "shown", "in_table"),
    [
        (0.5, "50%", "0.5000"),
        (0.0123, "1.2%", "0.0123"),
        (0.00042, "0.042%", "0.00042"),
        (0.0, "0.0%", "0"),
    ],
)
def test_small_ratios_keep_two_digits(share: float, shown: str, in_table: str) -> None:
    assert percent(share) == shown
    assert ratio_text(share, 4) == in_table


def test_a_loss_that_equals_the_margin_is_told_by_no_number_of_rows(
    make_run: Any, make_trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run([make_trial(0, 400_000, 0.9 * 0.99)])
    comparison = Paired(run, JudgedRows({"select": np.zeros(800)}, {}))
    monkeypatch.setattr(Paired, "most_lost", lambda *_: 0.02)
    (trial,) = run.finished
    assert comparison.rows_to_decide(trial, 0.01 * 0.9) is None
    assert comparison.rows_to_decide(trial, 0.01) is not None


def test_shares_held_out_are_of_the_held_out_metric(make_run: Any, make_trial: Any) -> None:
    runs = [make_run([make_trial(0, 400_000, 0.8)]) for _ in range(2)]
    runs[1] = replace(runs[1], definition={**runs[1].definition, "task.data": "another"})
    both = overlay(runs)
    assert both.relative
    assert (both.metrics, both.metric_name) == (
        runs[0].metric_name,
        f"{runs[0].metric_name}, share of the unpruned model's",
    )
    unpruned = runs[0].unpruned
    assert both.height(runs[0], unpruned.metric) == 1
    assert both.height(runs[0], unpruned.heldout_metric, heldout=True) == 1


@pytest.mark.parametrize("least", [300_000, 20_000])
def test_the_axis_holds_cascades_that_cost_more_than_the_models(
    make_run: Any, make_trial: Any, least: int
) -> None:
    run = make_run([make_trial(0, 600_000, 0.89), make_trial(1, least, 0.8)])
    figure, both = front_figure(overlay(run)), overlay(run)
    cascade = Cascade(
        stages=(CascadeStage(1, threshold=0.5), CascadeStage(None)),
        cost=1.3 * run.unpruned.cost_full,
        heldout_cost=1.3 * run.unpruned.cost_full,
        **{"metric": 0.9, "heldout_metric": 0.9, "agreement": 1.0, "heldout_agreement": 1.0},
        **{"deferred": 0.9, "heldout_deferred": 0.9},
    )
    add_cascades(figure, both, [[cascade]])
    most = figure.layout.xaxis.range[1]
    assert (10**most if figure.layout.xaxis.type == "log" else most) >= 1.3


def test_no_sentence_speaks_of_a_front_that_is_not_there(make_run: Any, make_trial: Any) -> None:
    missed = [with_result(make_trial(n, 400_000, 0.8), target_ratio=0.1) for n in range(FEWEST)]
    section = outer_section(overlay(make_run(missed)))
    assert section is None or not section.sentences


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=8),
    scale=st.sampled_from([0.5, 2.0, 64.0]),
)
def test_the_knee_is_the_point_furthest_above_the_chord_on_any_scale(
    steps: list[tuple[int, int]], scale: float, make_trial: Any
) -> None:
    """Against the distance as geometry has it, by cross products."""
    cost, metric, front = 0, 0, []
    for number, (dearer, better) in enumerate(steps):
        cost, metric = cost + dearer, metric + better
        front.append(make_trial(number, cost, metric / 1024).result)
    place = knee(front)
    scaled = [replace(r, cost=r.cost * scale, metric=r.metric * scale) for r in front]
    assert knee(scaled) == place
    if len(front) < 3:
        assert place is None
        return
    first, last = front[0], front[-1]

    def along(result: Measured) -> float:
        """Wide costs by their logarithms."""
        return math.log(result.cost) if last.cost > 10 * first.cost else result.cost

    above = [
        (along(last) - along(first)) * (r.metric - first.metric)
        - (last.metric - first.metric) * (along(r) - along(first))
        for r in front
    ]
    if place is None:
        assert max(above) <= 1e-9
    else:
        assert above[place] >= max(above) - 1e-9
        assert above[place] > 0


def test_where_costs_are_wide_the_knee_is_on_their_logarithms(make_trial: Any) -> None:
    """The second is the best buy in times, the third in sums."""
    costs = (1_000, 2_000, 50_000, 100_000)
    metrics = (0.5, 0.65, 0.95, 1.0)
    for shift, bend in ((0, 1), (100_000, 2)):
        rows = zip(costs, metrics, strict=True)
        front = [make_trial(n, shift + cost, metric) for n, (cost, metric) in enumerate(rows)]
        assert knee([trial.result for trial in front]) == bend


ROWS, LEVEL, LOSS = 500, 0.87, 0.01


def test_the_cheapest_that_is_surely_within_the_margin_comes_before_one_that_seems_so() -> None:
    lost = [0.03, 0.01, 0.008, 0.0]
    for most, taken in (
        ([0.05, 0.02, 0.015, 0.009], (3, True)),
        ([0.05, 0.02, 0.015, 0.012], (1, False)),
        ([None] * 4, (1, False)),
    ):
        assert cheapest_within(lost, most.__getitem__, 0.01) == taken
    assert cheapest_within(lost, lost.__getitem__, -0.01) is None


def planted(seed: int, losses: Floats) -> tuple[float, float] | None:
    """How far the metric of the model that is taken, and its expected one, lie above the truth.
    Models lose so much of the unpruned one's accuracy on all rows, and differ from it on 8%."""
    generator = np.random.default_rng(seed)
    unpruned = generator.random(ROWS) < LEVEL
    differs = generator.random((len(losses), ROWS)) < 0.08
    redrawn = generator.random((len(losses), ROWS)) < LEVEL - losses[:, None] / 0.08
    right = np.vstack([np.where(differs, redrawn, unpruned), unpruned]).astype(float)
    counts = generator.multinomial(ROWS, np.full(ROWS, 1 / ROWS), size=100)
    samples, metrics = right @ counts.T / ROWS, right.mean(1)
    lost = metrics[-1] - metrics[:-1]
    wider = 1.96 * np.std(samples[-1] - samples[:-1], axis=1)
    cheaper = np.maximum.accumulate(np.concatenate([[-1], metrics[:-2]]))
    front = np.flatnonzero(metrics[:-1] > cheaper)
    most = (lost + wider)[front]
    found = cheapest_within(lost[front].tolist(), most.__getitem__, LOSS * metrics[-1])
    if found is None:
        return None
    taken = front[found[0]]
    lucky = optimism(metrics[:-1], samples[:-1], samples[-1], wider, LOSS)
    too_high = metrics[taken] - (LEVEL - losses[taken])
    return too_high, too_high - lucky


@pytest.mark.parametrize("losses", [np.full(20, 0.004), np.linspace(0.03, 0, 16)])
def test_the_chosen_model_looks_too_good_and_its_expected_metric_does_not(losses: Floats) -> None:
    """Of many equal models, and of a front."""
    found = [one for seed in range(80) if (one := planted(seed, losses)) is not None]
    too_high, expected_too_high = np.mean(found, axis=0)
    assert too_high > 0.006
    assert abs(expected_too_high) < 0.0035


def test_where_the_choice_is_plain_nothing_is_corrected() -> None:
    """One model, and models far apart."""
    generator = np.random.default_rng(0)
    for metrics in (np.array([0.9]), np.array([0.5, 0.7, 0.9])):
        samples = metrics[:, None] + generator.normal(0, 0.01, (len(metrics), 500))
        samples -= samples.mean(1, keepdims=True) - metrics[:, None]
        unpruned, wider = samples[-1], np.zeros(len(metrics))
        assert optimism(metrics, samples, unpruned, wider, 0.01) == pytest.approx(0, abs=1e-12)
        assert optimism(metrics, samples, unpruned + 0.5, wider, 0.01) == 0

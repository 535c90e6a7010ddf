"""Cascades from kept answers: equal to the models at their ends, and sure of their gate."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.combining import gate
from objectives.combining.cascade import (
    CONFIDENCES,
    Cascade,
    CascadePair,
    Confidence,
    cascades,
    confidence_of,
    front_of,
    pair_of,
    pairs_of,
    spread,
    temperature_of,
    threefold,
)
from objectives.combining.gate import cheapest_agreeing, cheapest_keeping, most_agreeing_within
from objectives.combining.members import GateRows, Member, at_least, enough, probabilities
from objectives.metric import Metric

SMALL, LARGE = 3, None
"""The numbers of the two models."""


def answers(rows: int, seed: int, *, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, and logits (rows, 3) of two models: a good one, and one with more noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=rows)
    truth = 3.0 * np.eye(3)[labels]
    large = truth + generator.normal(size=(rows, 3))
    return labels, large + noise * generator.normal(size=(rows, 3)), large


def members(rows: int = 1000, seed: int = 0, noise: float = 1.0) -> tuple[list[Member], GateRows]:
    """The two, and the rows of both judging splits."""
    splits = {
        "select": answers(rows, seed, noise=noise),
        "heldout": answers(4000, seed + 1000, noise=noise),
    }
    small, large = (
        Member(
            number, cost, {role: split[place].astype(np.float32) for role, split in splits.items()}
        )
        for number, cost, place in ((SMALL, 0.01, 1), (LARGE, 1.0, 2))
    )
    return [small, large], GateRows(
        metric="accuracy",
        labels={role: split[0] for role, split in splits.items()},
        original={role: split[2].argmax(-1) for role, split in splits.items()},
        classes=3,
    )


def agreeing(own: list[Member], rows: GateRows, share: float) -> Cascade:
    """The cheapest cascade of these models that surely agrees so often."""
    found = cheapest_agreeing(list(pairs_of(own, rows)), share)
    assert found is not None
    return found


def numbers(cascade: Cascade) -> list[int | None]:
    """The trials of a cascade's models."""
    return [stage.number for stage in cascade.stages]


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_confidence_is_least_where_the_classes_are_equal(kind: Confidence) -> None:
    logits = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [9.0, 0.0, 0.0]], dtype=np.float32)
    found = confidence_of(kind, logits, 1.0)
    assert (np.diff(found) > 0).all()
    low, high = {"probability": (1 / 3, 1), "margin": (0, 1), "entropy": (-np.log(3), 0)}[kind]
    assert found[0] == pytest.approx(low)
    assert found[2] == pytest.approx(high, abs=0.01)


def test_a_threshold_of_nothing_is_the_small_model_and_one_of_everything_the_large() -> None:
    own, rows = members()
    pair = pair_of(*own, rows)
    none, all_rows = pair.at(-np.inf), pair.at(np.inf)
    for cascade, member, deferred in ((none, own[0], 0), (all_rows, own[1], 1)):
        said = member.logits["select"].argmax(-1)
        assert cascade.metric == rows.value("select", said)
        assert cascade.agreement == rows.agreement("select", said)
        assert cascade.deferred == cascade.heldout_deferred == deferred
    assert none.cost == 0.01
    assert all_rows.cost == 1.01
    assert all_rows.agreement == all_rows.heldout_agreement == 1


def three_members(rows: int = 1000, seed: int = 0) -> tuple[list[Member], GateRows]:
    """The two, with one between them in noise and in cost."""
    (small, large), judges = members(rows, seed, noise=2.0)
    generator = np.random.default_rng(seed)
    between = {
        role: (logits + 0.5 * generator.normal(size=logits.shape)).astype(np.float32)
        for role, logits in large.logits.items()
    }
    return [small, Member(5, 0.1, between), large], judges


def test_a_row_of_three_models_costs_those_that_it_asks() -> None:
    (small, middle, large), rows = three_members()
    last = pair_of(middle, large, rows)
    inner = last.joined(last.threshold(0.2))
    pair = replace(pair_of(small, middle, rows), large=inner)
    cascade = pair.at(pair.threshold(0.3))
    assert numbers(cascade) == [3, 5, None]
    for role, cost in (("select", cascade.cost), ("heldout", cascade.heldout_cost)):
        asked = pair.sure[role] < cascade.stages[0].threshold
        both = asked & (last.sure[role] < cascade.stages[1].threshold)
        assert cost == pytest.approx(0.01 + 0.1 * asked.mean() + 1.0 * both.mean())
        said = np.where(both, *(m.logits[role].argmax(-1) for m in (large, middle)))
        said = np.where(asked, said, small.logits[role].argmax(-1))
        agreement = {"select": cascade.agreement, "heldout": cascade.heldout_agreement}[role]
        assert agreement == rows.agreement(role, said)
    assert cascade.deferred == pytest.approx(0.3)


def test_the_curve_has_what_each_threshold_gives() -> None:
    own, rows = three_members(rows=60)
    pairs = list(pairs_of(own, rows))
    triples = list(threefold(pairs))
    assert triples
    assert all(len(pair.large.stages) == 2 for pair in triples)
    for pair in (*pairs, *triples):
        curve = pair.curve()
        for threshold, cost, agreed in zip(
            curve.thresholds, curve.costs, curve.agreed, strict=True
        ):
            cascade = pair.at(float(threshold))
            assert cascade.cost == pytest.approx(cost)
            assert cascade.agreement == pytest.approx(agreed / 60)


def test_three_models_are_taken_where_they_are_cheaper_and_keep_the_gate() -> None:
    costs, below = {2: list[float](), 3: list[float]()}, 0
    for seed in range(20):
        own, rows = three_members(seed=seed)
        found = agreeing(own, rows, 0.95)
        two = agreeing([own[0], own[2]], rows, 0.95)
        costs[3].append(found.cost)
        costs[2].append(two.cost)
        below += found.heldout_agreement < 0.95
    assert np.mean(costs[3]) < 0.8 * np.mean(costs[2])
    assert below <= 3


def test_rows_of_equal_confidence_are_deferred_together() -> None:
    logits = np.array([[1, 0], [1, 0], [0, 1], [3, 0]], dtype=np.float32)
    both = {"select": logits, "heldout": logits}
    large = {"select": np.zeros((4, 2), np.float32), "heldout": np.zeros((4, 2), np.float32)}
    rows = GateRows(
        "accuracy", *2 * ({"select": np.zeros(4, int), "heldout": np.zeros(4, int)},), 2
    )
    curve = pair_of(Member(0, 1.0, both), Member(1, 10.0, large), rows).curve()
    assert curve.costs.tolist() == [1, 1 + 7.5, 11]
    assert curve.agreed.tolist() == [3, 4, 4]


def test_the_temperature_makes_probabilities_honest() -> None:
    labels, _, large = answers(20_000, 0, noise=0)
    # The likeliest label by Bayes: logits 3 (x . e) of unit noise are the posterior's as they are.
    assert temperature_of((3 * large).astype(np.float32), labels) == pytest.approx(1, abs=0.05)
    assert temperature_of((12 * large).astype(np.float32), labels) == pytest.approx(4, rel=0.05)


def test_where_nothing_is_wrong_logits_stay_as_they_are() -> None:
    labels = np.arange(30) % 2
    logits = (np.eye(2)[labels] * np.linspace(1, 9, 30)[:, None]).astype(np.float32)
    assert temperature_of(logits, labels) == 1


def test_probabilities_of_large_logits_are_finite() -> None:
    found = probabilities(np.array([[1e4, -1e4]], dtype=np.float32))
    assert found.tolist() == [[1, 0]]


def test_the_bound_is_clopper_and_pearsons() -> None:
    assert at_least(10, 10) == pytest.approx(0.05 ** (1 / 10))
    assert at_least(0, 10) == 0
    needed = enough(0.99, 1500)
    assert needed is not None
    assert at_least(needed, 1500) >= 0.99 > at_least(needed - 1, 1500)
    assert enough(0.99, 100) is None  # 100 of 100 rows say 0.970 alone


_SLOW = [pytest.param(share, marks=pytest.mark.slow) for share in (0.9, 0.98)]


@pytest.mark.parametrize("share", [0.95, *_SLOW])
def test_the_gate_holds_on_rows_that_chose_nothing(share: float) -> None:
    """Of 200 draws of the choosing rows at most 5% and some luck end below the gate."""
    below = 0
    for seed in range(200):
        own, rows = members(rows=400, seed=seed)
        found = agreeing(own, rows, share)
        below += found.heldout_agreement < share - 0.002  # 4,000 rows are not all rows
    assert below <= 18, f"{below} of 200"


def test_of_many_rows_the_gate_gives_what_was_asked() -> None:
    """As many rows as `compress` takes of 13,880 texts; the mean of 20 draws."""
    given = []
    for seed in range(20):
        own, rows = members(rows=4000, seed=seed)
        found = agreeing(own, rows, 0.95)
        given.append(found.heldout_agreement)
    assert 0.95 < np.mean(given) < 0.96


@pytest.mark.slow
def test_the_gate_holds_though_the_cheapest_of_many_is_taken() -> None:
    """Six models, fifteen pairs: who takes the cheapest of all takes the luckiest, too."""
    generator = np.random.default_rng(0)
    original = 2 * generator.normal(size=(8000, 3))
    costs = {0.5: 1.0, 0.7: 0.9, 3.0: 0.5, 4.0: 0.4, 7.0: 0.12, 13.0: 0.0}
    models = [original + noise * generator.normal(size=(8000, 3)) for noise in costs.values()]
    below = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).permutation(8000)
        roles = {"select": drawn[:200], "heldout": drawn[200:]}
        own = [
            Member(None if cost == 13 else number, cost, {r: model[of] for r, of in roles.items()})
            for number, (cost, model) in enumerate(zip(costs, models, strict=True))
        ]
        said = {role: original[of].argmax(-1) for role, of in roles.items()}
        rows = GateRows(metric="agreement", labels=said, original=said, classes=3)
        found = agreeing(own, rows, 0.9)
        below += found.heldout_agreement < 0.9
    assert below <= 10, f"{below} of 100"


def test_where_the_large_model_fails_the_unpruned_one_stands_in() -> None:
    own, rows = members()
    worse = Member(1, 0.5, {role: -logits for role, logits in own[1].logits.items()})
    pairs = list(pairs_of([own[0], worse], rows)) + list(pairs_of(own, rows))
    found = cheapest_agreeing(pairs, 0.95)
    assert found is not None
    assert numbers(found) == [SMALL, LARGE]


@pytest.mark.slow
def test_where_the_chosen_pair_fails_another_cheap_one_is_tested() -> None:
    """Four models: by the rows that choose each second pair would be one that the others refuse."""
    costs = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels = {role: generator.integers(0, 3, size=3000) for role in ("select", "heldout")}
        unpruned = {
            role: 4 * np.eye(3)[classes] + 1.5 * generator.normal(size=(3000, 3))
            for role, classes in labels.items()
        }
        own = [
            Member(
                None if noise == 0 else number,
                cost,
                {r: x + noise * generator.normal(size=x.shape) for r, x in unpruned.items()},
            )
            for number, (cost, noise) in enumerate([(0.1, 0.9), (0.2, 0.5), (1, 0.25), (10, 0)])
        ]
        answers = {role: logits.argmax(-1) for role, logits in unpruned.items()}
        rows = GateRows(metric="accuracy", labels=labels, original=answers, classes=3)
        found = cheapest_keeping(list(pairs_of(own, rows)), 0.0, 0.98)
        assert found is not None
        costs.append(found.cost)
    assert np.mean(costs) < 0.4


def test_the_first_cascade_that_fails_ends_the_tests() -> None:
    """They go from the unpruned model down to the small one; the last that passed is taken."""
    own, rows = members(rows=300)
    pairs = list(pairs_of(own, rows))
    tested: list[float] = []

    def passing(tests: float) -> Cascade | None:
        tested.clear()

        def passes(pair: CascadePair, threshold: float) -> bool:
            tested.append(threshold)
            return len(tested) <= tests

        return gate._cheapest_passing(pairs, passes)

    small = passing(np.inf)
    assert small is not None
    assert numbers(small) == [SMALL]
    every = list(tested)
    assert every == sorted(every, reverse=True)
    assert (every[0], every[-1]) == (np.inf, -np.inf)
    large, both = passing(1), passing(4)
    assert large is not None
    assert both is not None
    assert numbers(large) == [LARGE]
    assert both.stages[0].threshold == every[3]
    assert len(tested) == 5
    assert passing(0) is None


def test_the_cheapest_defers_less_than_all() -> None:
    own, rows = members()
    found = agreeing(own, rows, 0.95)
    assert numbers(found) == [SMALL, LARGE]
    assert 0 < found.deferred < 0.7
    assert found.agreement >= 0.95
    assert agreeing(own, rows, 0.99).cost > found.cost


def test_no_gate_is_met_where_rows_are_too_few() -> None:
    own, rows = members(rows=50)
    assert cheapest_agreeing(list(pairs_of(own, rows)), 0.99) is None


def test_the_metric_is_kept_with_confidence() -> None:
    own, rows = members()
    pairs = list(pairs_of(own, rows))
    whole = rows.value("select", rows.original["select"])
    found = cheapest_keeping(pairs, whole - 0.02)
    assert found is not None
    assert found.metric >= whole - 0.02
    assert found.cost < 0.6
    assert cheapest_keeping(pairs, 1.01) is None
    paired = cheapest_keeping(pairs, 0.0, kept=0.98)
    assert paired is not None
    assert paired.metric >= 0.98 * whole
    few, judges = members(rows=30)
    assert cheapest_keeping(list(pairs_of(few, judges)), 0.0, kept=0.98) is None


@pytest.mark.parametrize("metric", ["f1", "mcc", "macro_f1"])
@pytest.mark.parametrize(("positives", "passes"), [(10, False), (200, True)])
def test_a_class_of_few_rows_vouches_for_no_metric(
    metric: Metric, positives: int, passes: bool
) -> None:
    """A model that answers all rows as the unpruned one does, by luck where they are few."""
    labels = (np.arange(900) < positives).astype(np.int64)[
        np.random.default_rng(0).permutation(900)
    ]
    logits = {role: 4.0 * np.eye(2)[labels] for role in ("select", "heldout")}
    said = dict.fromkeys(("select", "heldout"), labels)
    pairs = list(
        pairs_of(
            [Member(1, 0.1, logits), Member(None, 1.0, logits)], GateRows(metric, said, said, 2)
        )
    )
    assert (cheapest_keeping(pairs, 0.0, kept=0.95) is not None) == passes
    assert (cheapest_keeping(pairs, 0.9) is not None) == passes


def test_the_share_that_breaks_a_gate_of_accuracy_is_what_it_may_lose() -> None:
    labels = np.arange(600) % 3
    original = np.where(np.arange(600) < 120, (labels + 1) % 3, labels)  # accuracy 0.8
    rows = GateRows("accuracy", {"select": labels}, {"select": original}, 3)
    assert rows.share_that_breaks(0.0, 0.95) == pytest.approx(0.05 * 0.8)
    assert rows.share_that_breaks(0.995, 0.0) == pytest.approx(0.005)


def test_a_slow_and_worse_large_model_does_not_end_the_tests() -> None:
    own, rows = members()
    worse = {role: logits - 4.0 * np.eye(3)[0] for role, logits in own[1].logits.items()}
    alone = agreeing(own, rows, 0.95)
    assert agreeing([*own, Member(5, 1.01, worse)], rows, 0.95).cost == alone.cost


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_pairs_does_not_choose(seed: int) -> None:
    """Nor is a pair chosen for a cheap threshold whose large model, slow and worse, would fail."""
    generator = np.random.default_rng(seed)
    labels = {role: generator.integers(3, size=600) for role in ("select", "heldout")}

    def model(number: int | None, cost: float, right: float) -> Member:
        logits = {}
        for role, classes in labels.items():
            wrong = generator.random(600) > right
            said = np.where(wrong, (classes + 1) % 3, classes)
            sure = (3 - 2 * wrong)[:, None] * np.eye(3)[said]
            logits[role] = sure + 0.5 * generator.normal(size=(600, 3))
        return Member(number, cost, logits)

    own = [model(0, 0.1, 0.93), model(1, 0.5, 0.8), model(None, 1.0, 0.975)]
    original = {role: logits.argmax(-1) for role, logits in own[2].logits.items()}
    rows = GateRows(metric="accuracy", labels=labels, original=original, classes=3)
    pairs = list(pairs_of(own, rows))
    forwards, backwards = (
        cheapest_keeping(ordered, 0.0, kept=0.95) for ordered in (pairs, pairs[::-1])
    )
    assert forwards == backwards


def test_a_large_model_that_costs_less_alone_is_taken_alone() -> None:
    own, rows = members()
    near = Member(9, 0.9, {role: logits + 0.01 for role, logits in own[1].logits.items()})
    bad = Member(1, 0.85, {role: -logits for role, logits in own[1].logits.items()})
    found = agreeing([bad, near, own[1]], rows, 0.95)
    assert numbers(found) == [9]
    assert found.cost == 0.9


def test_the_best_within_a_cost_uses_it() -> None:
    own, rows = members()
    pairs = list(pairs_of(own, rows))
    cheap, costly = most_agreeing_within(pairs, 0.1), most_agreeing_within(pairs, 0.3)
    assert cheap is not None
    assert costly is not None
    assert cheap.cost <= 0.095, "other texts may take longer"
    assert 0.1 < costly.cost <= 0.285
    assert cheap.agreement < costly.agreement
    assert most_agreeing_within(pairs, 0.001) is None


@given(models=st.lists(st.integers()), most=st.integers(1, 9))
def test_of_many_models_some_are_taken_evenly(models: list[int], most: int) -> None:
    indices = spread(range(len(models)), most)
    assert len(indices) == min(len(models), most)
    assert indices[:1] == [0][: len(models)]
    steps = {after - before for before, after in pairwise(indices)}
    assert all(steps)
    assert max(steps, default=1) - min(steps, default=1) <= 1
    assert most == 1 or not models or indices[-1] == len(models) - 1
    assert spread(models, most) == [models[place] for place in indices]


def test_a_front_rises_in_cost_and_metric() -> None:
    own, rows = members()
    front = front_of(cascades(pairs_of(own, rows)))
    assert len(front) > 2
    assert all(a.cost < b.cost and a.metric < b.metric for a, b in pairwise(front))

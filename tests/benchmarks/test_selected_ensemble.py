"""Greedy selection of ensembles."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np

from benchmarks.cascade import ensembles
from objectives.combining.members import GateRows, Member, probabilities


def noisy(count: int, rows: int = 600) -> tuple[list[Member], GateRows]:
    """Models that are right by themselves as often, each with noise of its own."""
    generator = np.random.default_rng(0)
    labels = {role: generator.integers(3, size=rows) for role in ("select", "heldout")}
    own = [
        Member(
            number,
            1.0 + number,
            {
                role: (2 * np.eye(3)[truth] + generator.normal(size=(rows, 3)) * 1.5).astype(
                    np.float32
                )
                for role, truth in labels.items()
            },
        )
        for number in range(count)
    ]
    original = {role: own[0].logits[role].argmax(-1) for role in labels}
    return own, GateRows("accuracy", labels, original, 3)


def test_the_first_is_the_best_model_alone() -> None:
    own, rows = noisy(4)
    first = ensembles(own, rows, steps=1)[0]
    [number] = first.times
    chosen = [rows.value("select", member.logits["select"].argmax(-1)) for member in own]
    halves = [
        (own[n].logits["select"].argmax(-1)[::2] == rows.labels["select"][::2]).mean()
        for n in range(4)
    ]
    assert halves[number] == max(halves)
    assert first.metric == chosen[number]
    assert first.cost == own[number].cost


def test_models_of_independent_errors_are_better_together() -> None:
    own, rows = noisy(5)
    last = ensembles(own, rows)[-1]
    best = max(rows.value("heldout", member.logits["heldout"].argmax(-1)) for member in own)
    assert len(last.times) > 1
    assert last.heldout_metric > best + 0.02
    assert sum(last.times.values()) == 10
    assert last.cost == sum(own[number].cost for number in last.times if number is not None)


def test_a_member_that_is_always_right_stays_alone() -> None:
    own, rows = noisy(3)
    perfect = Member(
        9,
        0.5,
        {role: 50 * np.eye(3, dtype=np.float32)[truth] for role, truth in rows.labels.items()},
    )
    found = ensembles([*own, perfect], rows)
    assert set(found[-1].times) == {9}


def test_each_step_adds_the_best_and_no_choice_of_as_many_is_overtaken() -> None:
    """Of five models, beside all choices of up to four, on the rows that choose."""
    own, rows = noisy(5, rows=200)
    choosing = rows.judged_by(np.arange(200) % 2 == 0)
    shares = [probabilities(member.logits["select"])[::2] for member in own]

    def metric(chosen: Iterable[int]) -> float:
        return choosing.value("select", sum(shares[place] for place in chosen).argmax(-1))  # type: ignore[union-attr]

    before: Counter[int] = Counter()
    gaps = []
    for number, step in enumerate(ensembles(own, rows, steps=4), start=1):
        added = Counter(step.times) - before
        assert added.total() == 1, "what was chosen stays"
        greedy = metric(Counter(step.times).elements())
        assert greedy == max(metric([*before.elements(), place]) for place in range(5))
        every = combinations_with_replacement(range(5), number)
        gaps.append(max(map(metric, every)) - greedy)
        before = Counter(step.times)
    assert gaps[0] == 0, "the first is the best alone"
    assert min(gaps) == 0 < max(gaps), "greed is not always the best"


def test_of_models_that_answer_alike_the_cheapest_is_all_and_it_is_so_again() -> None:
    """However an ensemble of them is made up, its answers are those of one."""
    (model, *_), rows = noisy(2)
    alike = [replace(model, number=number, cost=cost) for number, cost in enumerate((3, 1, 2))]
    found = ensembles(alike, rows)
    assert [dict(step.times) for step in found] == [{1: n} for n in range(1, 11)]
    assert {(step.metric, step.heldout_metric, step.cost) for step in found} == {
        (*(rows.value(role, own.argmax(-1)) for role, own in model.logits.items()), 1)
    }
    mixed, rows = noisy(4)
    assert ensembles(mixed, rows) == ensembles(mixed, rows)

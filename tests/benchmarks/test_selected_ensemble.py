"""Greedy selection of ensembles."""

import numpy as np

from benchmarks.selected_ensemble import ensembles
from objectives.combining.members import Member, Rows


def noisy(count: int, rows: int = 600) -> tuple[list[Member], Rows]:
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
    return own, Rows("accuracy", labels, original, 3)


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

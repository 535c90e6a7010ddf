"""Upper confidence bounds by hand, and who has children."""

import math
from collections import Counter

import numpy as np
import pytest

from objectives.strategies.operation_priority import OperationPriority, PrioritySettings
from objectives.strategies.strategy import Candidate

PLACES = {"kind": ("attention", "conv"), "op": ("add", "matmul", "softmax"), "scale": ("a", "b")}


def candidate(kind: str, op: str, scale: str = "a") -> Candidate:
    return {"kind": kind, "op": op, "scale": scale}


FOUR = [
    (candidate("attention", "add"), 1.0),
    (candidate("attention", "matmul"), 2.0),
    (candidate("conv", "matmul"), 4.0),
    (candidate("conv", "add"), 5.0),
]


def priority(**settings: object) -> OperationPriority:
    given = PrioritySettings(**{"initial": 4, **settings})  # type: ignore[arg-type]
    strategy = OperationPriority(PLACES, 0, given)
    strategy.learn(FOUR)
    return strategy


def test_bounds_are_the_mean_and_what_few_samples_leave_open() -> None:
    """The mean of all is 3, the variance (4 + 1 + 1 + 4) / 4."""
    std, width = math.sqrt(2.5), math.sqrt(2 * math.log(4) / 2)
    strategy = priority(exploration=0.3)
    kinds = strategy.bounds("kind")
    assert kinds.tolist() == pytest.approx([-1.5 / std + 0.3 * width, 1.5 / std + 0.3 * width])
    assert strategy.bounds("op").tolist() == pytest.approx([0.3 * width, 0.3 * width, math.inf])
    strategy.learn([(candidate("conv", "softmax"), 3.0)])
    rare = 0.3 * math.sqrt(2 * math.log(5))
    assert strategy.bounds("op")[2] == pytest.approx(rare)


def test_means_are_those_of_all_scores_in_whatever_order() -> None:
    forward, backward = priority(), priority()
    backward.learned.reverse()
    for name in PLACES:
        assert forward.bounds(name).tolist() == pytest.approx(backward.bounds(name).tolist())


def test_scores_of_another_unit_change_nothing() -> None:
    percent = priority()
    percent.learned = [(one, 100 * score - 7) for one, score in percent.learned]
    assert percent.bounds("kind").tolist() == pytest.approx(priority().bounds("kind").tolist())
    assert percent.propose(20) == priority().propose(20)


def test_what_was_never_tried_comes_first() -> None:
    """A change of "op" is always to softmax, one of "scale" to b."""
    for child in priority(uniform=("kind",), parents=1).propose(2):
        assert child["op"] == "softmax" or child["scale"] == "b"


def test_a_choice_is_drawn_by_the_softmax_of_the_bounds() -> None:
    """A chi square of one degree of freedom is above 10.8 with probability 0.001."""
    strategy = priority(exploration=0.0, temperature=2.0)
    strategy.places = {"kind": PLACES["kind"]}
    drawn = Counter(strategy._preferred("kind", {}) for _ in range(1000))
    gap = 3 / math.sqrt(2.5) / 2.0
    share = 1 / (1 + math.exp(-gap))
    expected = np.array([1000 * (1 - share), 1000 * share])
    found = np.array([drawn["attention"], drawn["conv"]])
    assert ((found - expected) ** 2 / expected).sum() < 10.8


def test_the_best_have_children_in_turn() -> None:
    """Two places change at most: the third tells the parent, if no two parents share it."""
    places = {name: tuple("abcdef") for name in ("x", "y", "z", "w")}
    strategy = OperationPriority(places, 0, PrioritySettings(initial=4, parents=2))
    strategy.learn([(dict.fromkeys(places, letter), ord(letter)) for letter in "abcd"])
    parents = [Counter(child.values()).most_common(1)[0][0] for child in strategy.propose(6)]
    assert parents == ["d", "c"] * 3
    strategy.learn([(dict.fromkeys(places, "f"), 1000.0)])
    assert Counter(strategy.propose(2)[1].values()).most_common(1)[0][0] == "f"


def test_uniform_places_change_besides() -> None:
    strategy = priority(uniform=("kind",), parents=1)
    assert {child["kind"] for child in strategy.propose(4)} == {"attention"}  # the parent is conv


def test_a_child_that_was_scored_is_not_proposed_again() -> None:
    """Of the best one's neighbours two are left: with another scale, and with the third op."""
    strategy = priority(parents=1)
    known = {tuple(one.values()) for one, _ in strategy.learned}
    children = [tuple(child.values()) for child in strategy.propose(2)]
    assert len({*children} - known) == 2


def test_a_place_that_does_not_act_counts_for_no_bound_and_is_drawn_anew() -> None:
    without = {"kind": "attention", "op": "add"}
    strategy = priority(parents=1, exploration=0.0)
    before = strategy.bounds("scale")
    strategy.learn([(without, 3.0)])  # the mean of all: nothing else changes but the deviation
    assert strategy.bounds("scale")[0] * math.sqrt(2.0) == pytest.approx(before[0] * math.sqrt(2.5))
    strategy.learn([(without, 9.0)])
    assert {child["scale"] for child in strategy.propose(30)} == {"a", "b"}


def test_a_rejected_child_is_drawn_again_and_its_choice_is_no_longer_untried() -> None:
    strategy = OperationPriority(
        PLACES, 0, PrioritySettings(initial=4), lambda child: child["op"] != "softmax"
    )
    strategy.learn(FOUR)
    assert np.isinf(strategy.bounds("op")[2])
    assert all(child["op"] != "softmax" for child in strategy.propose(2))
    assert strategy.bounds("op")[2] == pytest.approx(0.3 * math.sqrt(2 * math.log(4)))

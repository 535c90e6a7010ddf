"""Tournaments: who is a parent, what changes, who leaves."""

import numpy as np
import pytest

from objectives.strategies.evolution import Evolution, EvolutionSettings
from objectives.strategies.strategy import Candidate

PLACES = {f"p{index}": tuple("abcde") for index in range(4)}


def candidate(letters: str) -> Candidate:
    return dict(zip(PLACES, letters, strict=True))


def letters(candidate: Candidate) -> str:
    return "".join(map(str, candidate.values()))


def test_the_oldest_leaves_even_if_it_is_the_best() -> None:
    strategy = Evolution(PLACES, 0, EvolutionSettings(population=3, sample=2))
    strategy.learn([(candidate("aaaa"), 9.0), (candidate("bbbb"), 1.0), (candidate("cccc"), 2.0)])
    strategy.learn([(candidate("dddd"), 0.0)])
    assert [letters(one) for one, _ in strategy.learned] == ["bbbb", "cccc", "dddd"]


def test_without_ageing_the_worst_of_a_sample_leaves() -> None:
    """A sample of 64 out of three has them all."""
    settings = EvolutionSettings(population=2, sample=64, dies="worst")
    strategy = Evolution(PLACES, 0, settings)
    strategy.learn([(candidate("aaaa"), 9.0), (candidate("bbbb"), 1.0), (candidate("cccc"), 2.0)])
    assert [letters(one) for one, _ in strategy.learned] == ["aaaa", "cccc"]
    strategy.learn([(candidate("dddd"), 0.0)])  # a child that is worse than all
    assert [letters(one) for one, _ in strategy.learned] == ["aaaa", "cccc"]


def test_the_best_of_the_sample_is_parent_and_one_place_changes() -> None:
    strategy = Evolution(PLACES, 0, EvolutionSettings(population=3, sample=64))
    strategy.learn([(candidate("aaaa"), 1.0), (candidate("bbbb"), 3.0), (candidate("cccc"), 2.0)])
    for child in map(letters, strategy.propose(50)):
        assert sum(letter != "b" for letter in child) == 1


def test_a_sample_of_one_makes_every_member_a_parent() -> None:
    strategy = Evolution(PLACES, 0, EvolutionSettings(population=3, sample=1))
    strategy.learn([(candidate("aaaa"), 1.0), (candidate("bbbb"), 3.0), (candidate("cccc"), 2.0)])
    parents = {max(set(child), key=child.count) for child in map(letters, strategy.propose(60))}
    assert parents == set("abc")


def test_it_draws_at_random_until_the_population_is_full() -> None:
    strategy = Evolution(PLACES, 0, EvolutionSettings(population=3, sample=64))
    strategy.learn([(candidate("aaaa"), 1.0), (candidate("aaaa"), 3.0)])
    changed = [sum(letter != "a" for letter in letters(one)) for one in strategy.propose(50)]
    assert max(changed) == 4


@pytest.mark.parametrize("rate", [0.025, 0.4])
def test_places_are_drawn_anew_at_the_rate(rate: float) -> None:
    """Of five choices one is the old one: a place differs with probability 0.8 x rate. A chi square
    of one degree of freedom is above 10.8 with probability 0.001."""
    strategy = Evolution(PLACES, 1, EvolutionSettings(population=1, mutation=rate))
    strategy.learn([(candidate("aaaa"), 1.0)])
    children = "".join(map(letters, strategy.propose(5000)))
    expected = np.array([0.8 * rate, 1 - 0.8 * rate]) * len(children)
    found = np.array([len(children) - children.count("a"), children.count("a")])
    assert ((found - expected) ** 2 / expected).sum() < 10.8


def test_where_nothing_can_change_the_child_is_its_parent() -> None:
    strategy = Evolution({"only": (1,)}, 0, EvolutionSettings(population=1))
    strategy.learn([({"only": 1}, 0.5)])
    assert strategy.propose(2) == [{"only": 1}] * 2
